package dsh

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/objects"
)

var (
	// ErrOtherLog means that the session exists with other events. Import into another session.
	ErrOtherLog = errors.New("the session exists with other events")
	// ErrNoFit means that the log cannot be stored as it is. The text says which limit is to be raised, or what is
	// missing. Nothing was written.
	ErrNoFit = errors.New("the log cannot be imported")
)

// Target is where a translated log goes.
type Target struct {
	Logs          eventlog.Store
	Objects       objects.Store
	MaxEventBytes int64 // the longest payload that the log takes
}

// Imported says what an import found and did, in events.
type Imported struct {
	Found  uint64 // of the translation, stored before
	Stored uint64 // now
	Beyond uint64 // behind the translation: the session has gone on
}

// Import stores a translated log as a session. When it returns nil, every object and every event is durably stored: the
// objects before the first event that is new, the events in order, each whole or not at all. What is stored already
// stays as it is, so that an import that ended early is completed by the next one, and a repeated one changes nothing.
//
// Errors wrap [ErrNoFit], [ErrOtherLog], or are those of the stores; after them a prefix of the events may be stored. A
// session must not be used by others before its import is complete: an event of theirs ends the import for good, with
// ErrOtherLog.
func (s *Session) Import(ctx context.Context, to Target) (Imported, error) {
	var done Imported
	if err := s.fits(to.MaxEventBytes); err != nil {
		return done, err
	}
	log, err := to.Logs.Open(ctx, s.ID)
	switch {
	case errors.Is(err, eventlog.ErrNotFound):
		log = nil
	case err != nil:
		return done, err
	default:
		if err := s.compare(ctx, log, &done); err != nil {
			return done, err
		}
	}
	for i := range s.Objects {
		o := &s.Objects[i]
		if _, err := objects.Put(ctx, to.Objects, o.Ref.MediaType, o.Data); err != nil {
			return done, fmt.Errorf("session %s: %w", s.ID, err)
		}
	}
	if log == nil {
		if log, err = to.Logs.Create(ctx, s.ID); err != nil {
			return done, err
		}
	}
	for i := done.Found; i < uint64(len(s.Events)); i++ {
		err := log.Append(ctx, &s.Events[i], s.Payloads[i])
		switch {
		case errors.Is(err, eventlog.ErrLostOwnership):
			return done, fmt.Errorf("%w: %w: import into another session (--session ID)", ErrOtherLog, err)
		case err != nil:
			return done, fmt.Errorf("event %d of %d: %w: import again to go on", i+1, len(s.Events), err)
		}
		done.Stored++
	}
	return done, nil
}

// fits refuses what the stores would refuse in the middle.
func (s *Session) fits(most int64) error {
	if len(s.Missing) > 0 {
		return fmt.Errorf("%w: session %s: %d images are named whose bytes nobody has, the first is sha256:%s: give the images (--attachments DIR)",
			ErrNoFit, s.ID, len(s.Missing), s.Missing[0].Digest)
	}
	for i, p := range s.Payloads {
		if int64(len(p)) > most {
			return fmt.Errorf("%w: session %s: event %d (%s) has %d bytes, the log takes %d: raise max_payload of the server",
				ErrNoFit, s.ID, i+1, s.Events[i].Type(), len(p), most)
		}
	}
	return nil
}

// compare holds what is stored against the translation.
func (s *Session) compare(ctx context.Context, log eventlog.Log, done *Imported) error {
	last, err := log.Last(ctx)
	if err != nil || last == 0 {
		return err
	}
	for m, err := range log.Read(ctx, 1) {
		if err != nil {
			return err
		}
		if m.Seq > uint64(len(s.Events)) {
			done.Beyond = last - done.Found
			return nil
		}
		e := &s.Events[m.Seq-1]
		if m.ID != e.ID || m.Type != e.Type() || !bytes.Equal(m.Payload, s.Payloads[m.Seq-1]) {
			return fmt.Errorf("%w: session %s: event %d is %s %s, the file has %s %s there: is it the same file, with the same flags? Otherwise import into another session (--session ID)",
				ErrOtherLog, s.ID, m.Seq, m.Type, m.ID, e.Type(), e.ID)
		}
		done.Found++
	}
	return nil
}
