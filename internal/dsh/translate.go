package dsh

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/oklog/ulid/v2"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

const (
	rowHeader          = "session"
	rowTextChunks      = "text-chunks"
	rowReasoningChunks = "reasoning-chunks"
	rowToolCallChunks  = "tool-call-chunks"
)

// worker is the name under which a translated log is claimed.
const worker = "dsh"

// Request is one request of the conversation that the reference system dispatched.
type Request struct {
	Turn, Step, Attempt int64      // turn and step as the reference system numbers them; attempts count from 1 in each step
	FirstChunk          uint64     // the reference system's sequence of the attempt's first chunk
	Body                codec.Body // as our log has it: its digest is that of the llm/stream

	renamed []renaming
}

// Bytes returns the exact body that the reference system sent. It is Body's, but for the ids of tool calls that were
// empty, or not unique in their answer: our log has others there.
func (r *Request) Bytes() []byte { return undo(r.Body.Bytes(), r.renamed) }

// Session is a translated log.
type Session struct {
	ID       events.ID
	Events   []events.Event // a complete log of ours: it folds
	Payloads [][]byte       // their canonical payloads
	Requests []Request      // in dispatch order
}

// Translate reads a session log of the reference system, raw or as zstd frames, and returns it as a log of ours. Each
// attempt's first chunk is preceded by the llm/stream that our loop would have recorded. Nothing is returned of a log
// that does not fold. Errors about the file's contents wrap [ErrCorrupt] and name the line.
func Translate(r io.Reader) (*Session, error) {
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		return nil, err
	}
	t := &translator{builder: builder, seqs: make(map[uint64]uint64), out: new(Session)}
	line := 0
	for n, re := range rows(r) {
		line = n
		if re.err != nil {
			return nil, re.err
		}
		if err := t.row(&re.row); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrCorrupt, n, err)
		}
	}
	if t.state == nil {
		return nil, fmt.Errorf("%w: no session header in %d lines: is it a session log of the reference system?", ErrCorrupt, line)
	}
	return t.out, nil
}

type translator struct {
	state   *fold.State
	builder codec.Builder
	out     *Session
	seqs    map[uint64]uint64 // the reference system's sequences to ours, where ours has an event for them; looked up only
	time    int64
	next    uint64 // the reference system's next sequence

	call    *modelCall // the open one, nil when there is none
	tools   []stepTool // of the step's answer
	renamed []renaming
}

// id derives a ULID from the log, so that a log always translates to the same events.
func id(ms int64, parts ...string) events.ID {
	h := sha256.New()
	for _, p := range parts {
		_, _ = io.WriteString(h, p) // a hash never fails
		_, _ = h.Write([]byte{0})
	}
	var u ulid.ULID
	copy(u[6:], h.Sum(nil))
	_ = u.SetTime(uint64(max(ms, 0)) & ulid.MaxTime()) // masked: it cannot be too large
	return events.ID(u.String())
}

// errEncode is wrapped when an event of ours cannot be made of what the reference system recorded.
var errEncode = errors.New("it has no place in our log")

// append adds an event to the log and folds it.
func (t *translator) append(body events.Body, surface events.SurfaceOp, sources []uint64) (uint64, error) {
	seq := t.state.Seq() + 1
	e := events.Event{
		Seq: seq, ID: id(t.time, string(t.state.ID()), string(binary.BigEndian.AppendUint64(nil, seq))), Time: t.time,
		Prev: t.state.Head(), Body: body, Surface: surface, Sources: sources,
	}
	_, e.Ignorable = body.(*events.Unknown)
	payload, err := events.Encode(&e)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errEncode, err)
	}
	if err := t.state.Apply(&e); err != nil {
		return 0, err
	}
	t.out.Events = append(t.out.Events, e)
	t.out.Payloads = append(t.out.Payloads, payload)
	return seq, nil
}

// message translates a message; one without an id gets one.
func (t *translator) message(r *row, m *message, role events.Role) (events.Message, error) {
	em, err := m.event(role)
	if em.ID == "" {
		em.ID = string(id(t.time, string(t.out.ID), string(binary.BigEndian.AppendUint64(nil, r.Seq))))
	}
	return em, err
}

func (t *translator) plain(body events.Body) (uint64, error) {
	return t.append(body, events.SurfaceOp{}, nil)
}

func (t *translator) claim(reason events.ClaimReason) error {
	_, err := t.plain(&events.LoopClaimed{
		Worker: worker, Instance: id(t.time, worker, string(binary.BigEndian.AppendUint64(nil, t.state.Seq()))), Reason: reason,
	})
	return err
}

func (t *translator) start(r *row) error {
	if t.state != nil {
		return errors.New("a second session header")
	}
	if r.Version != 0 {
		return fmt.Errorf("log version %v; only 0 is known", r.Version)
	}
	t.time = count(r.CreatedAt, new(bool))
	t.out.ID = id(t.time, string(r.ID))
	t.state = fold.New(t.out.ID)
	_, err := t.plain(&events.SessionCreated{
		Session: t.out.ID,
		Labels:  []events.Label{{Name: "dsh.session", Value: string(r.ID)}}, Cwd: string(r.Cwd), DelegationDepth: count(r.DelegationDepth, new(bool)),
	})
	if err != nil {
		return err
	}
	return t.claim(events.ClaimCreated)
}

// row translates one row.
func (t *translator) row(r *row) error {
	if r.Type == rowHeader {
		return t.start(r)
	}
	if t.state == nil {
		return fmt.Errorf("%q before the session header", clip(string(r.Type)))
	}
	width := uint64(1)
	isPacked := r.Type == rowTextChunks || r.Type == rowReasoningChunks || r.Type == rowToolCallChunks
	var p packed
	if isPacked {
		if err := unmarshal(r.Data, &p); err != nil {
			return err
		}
		r.Seq, r.Time = r.Seq0, r.Time0
		width = uint64(max(len(p.Texts), len(p.Args)))
	}
	if r.Seq != t.next {
		return fmt.Errorf("sequence %d where %d belongs: rows are missing, doubled or moved", r.Seq, t.next)
	}
	t.time = max(t.time, count(r.Time, new(bool)))
	var seq uint64
	var err error
	if isPacked {
		err = t.chunk(r, p.turnStep, p.chunk(r.Type))
	} else {
		seq, err = t.event(r)
	}
	if err != nil {
		return fmt.Errorf("event %d (%s): %w", r.Seq, clip(string(r.Type)), err)
	}
	if seq != 0 {
		t.seqs[r.Seq] = seq
	}
	t.next = r.Seq + width
	return nil
}

// clip shortens a name for an error's text.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// sources translates the sequences that an event cites, each once, without those that have no event in our log.
func (t *translator) sources(in []uint64) []uint64 {
	var out []uint64
	seen := make(map[uint64]bool, len(in))
	for _, s := range in {
		if seq := t.seqs[s]; seq != 0 && !seen[seq] {
			seen[seq] = true
			out = append(out, seq)
		}
	}
	return out
}

// isAppend reports whether a surface operation appends, as an absent one does.
func isAppend(raw []byte) bool { return len(raw) == 0 || bytes.Equal(raw, []byte(`"append"`)) }

// surface translates a surface operation that is no append.
func (t *translator) surface(raw []byte) (events.SurfaceOp, error) {
	var op struct {
		Op    text   `json:"op"`
		Start uint64 `json:"start"`
		End   uint64 `json:"end"`
	}
	if err := unmarshal(raw, &op); err != nil {
		return events.SurfaceOp{}, err
	}
	start, end := t.seqs[op.Start], t.seqs[op.End]
	if op.Op != "replace" || start == 0 || end == 0 {
		return events.SurfaceOp{}, fmt.Errorf("surface operation %q over events %d to %d", clip(string(op.Op)), op.Start, op.End)
	}
	return events.ReplaceOp(start, end), nil
}
