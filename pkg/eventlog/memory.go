package eventlog

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// Memory is a [Store] in the memory of this process: for tests, and for programs that need no durability.
type Memory struct {
	clock func() time.Time

	mu   sync.RWMutex
	logs map[events.ID]*memoryLog
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store. The clock gives [Message.Stored].
func NewMemory(clock func() time.Time) *Memory {
	return &Memory{clock: clock, logs: make(map[events.ID]*memoryLog)}
}

// Create implements [Store].
func (m *Memory) Create(ctx context.Context, id events.ID) (Log, error) {
	if _, err := events.ParseID(string(id)); err != nil {
		return nil, fmt.Errorf("create session: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create session %s: %w", id, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	log, ok := m.logs[id]
	if !ok {
		log = &memoryLog{id: id, clock: m.clock}
		m.logs[id] = log
	}
	return log, nil
}

// Open implements [Store].
func (m *Memory) Open(ctx context.Context, id events.ID) (Log, error) {
	if _, err := events.ParseID(string(id)); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open session %s: %w", id, err)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	log, ok := m.logs[id]
	if !ok {
		return nil, fmt.Errorf("open session %s: %w", id, ErrNotFound)
	}
	return log, nil
}

// Sessions implements [Store].
func (m *Memory) Sessions(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		m.mu.RLock()
		ids := slices.Sorted(maps.Keys(m.logs))
		m.mu.RUnlock()
		for _, id := range ids {
			if err := ctx.Err(); err != nil {
				yield(Info{}, fmt.Errorf("list sessions: %w", err))
				return
			}
			m.mu.RLock()
			log := m.logs[id]
			m.mu.RUnlock()
			if !yield(log.info(), nil) {
				return
			}
		}
	}
}

// memoryLog is the log of one session in memory.
type memoryLog struct {
	id    events.ID
	clock func() time.Time

	mu       sync.RWMutex
	messages []Message // message n has the sequence n+1; the payloads are never changed
	bytes    uint64
}

// Append implements [Log].
func (l *memoryLog) Append(ctx context.Context, e *events.Event, payload []byte) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("session %s: append event %d: %w", l.id, e.Seq, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last := uint64(len(l.messages))
	switch {
	case e.Seq == 0:
		return fmt.Errorf("session %s: append: %w: sequences count from 1", l.id, events.ErrInvalid)
	case e.Seq > last+1:
		return fmt.Errorf("append event %d: %w", e.Seq, &GapError{Session: l.id, Want: last + 1, Got: e.Seq})
	case e.Seq <= last:
		return CheckStored(l.id, e, payload, &l.messages[e.Seq-1])
	}
	l.messages = append(l.messages, Message{
		Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: bytes.Clone(payload), Stored: l.clock(),
	})
	l.bytes += uint64(len(payload))
	return nil
}

// Read implements [Log].
func (l *memoryLog) Read(ctx context.Context, from uint64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		from := max(from, 1)
		l.mu.RLock()
		messages := l.messages
		l.mu.RUnlock()
		if last := uint64(len(messages)); from > last+1 {
			yield(Message{}, fmt.Errorf("read from event %d: %w", from, &GapError{Session: l.id, Want: last + 1}))
			return
		}
		for _, m := range messages[from-1:] {
			if err := ctx.Err(); err != nil {
				yield(Message{}, fmt.Errorf("session %s: read event %d: %w", l.id, m.Seq, err))
				return
			}
			m.Payload = bytes.Clone(m.Payload)
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Last implements [Log].
func (l *memoryLog) Last(ctx context.Context) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("session %s: last event: %w", l.id, err)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return uint64(len(l.messages)), nil
}

func (l *memoryLog) info() Info {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n := uint64(len(l.messages))
	info := Info{ID: l.id, Last: n, Messages: n, Bytes: l.bytes}
	if n > 0 {
		info.LastTime = l.messages[n-1].Stored
	}
	return info
}

// CheckStored compares what stands at e.Seq with the event that a writer wants there: nil when it is that event, a
// [*LostError] when it is another, and an error that wraps [ErrCorrupt] when it has the event's ID and another payload.
// Implementations of [Log] settle ambiguous appends with it.
func CheckStored(session events.ID, e *events.Event, payload []byte, stored *Message) error {
	switch {
	case stored.Seq != e.Seq:
		return fmt.Errorf("append event %d: %w", e.Seq, &GapError{Session: session, Want: e.Seq, Got: stored.Seq})
	case stored.ID != e.ID:
		return fmt.Errorf("append %s event %d: %w", e.Type(), e.Seq,
			&LostError{Session: session, Seq: e.Seq, Other: stored.ID, Type: stored.Type})
	case !bytes.Equal(stored.Payload, payload):
		return fmt.Errorf("session %s: append event %d: %w: the log holds another payload under its ID %s",
			session, e.Seq, ErrCorrupt, e.ID)
	}
	return nil
}
