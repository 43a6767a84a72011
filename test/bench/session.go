package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// session is a generated session with the true digests of its requests.
type session struct {
	*foldtest.Log

	bytes int64 // of all payloads
	// chunks is the number of events that a log has in which every delta of a stream is an event of its own, as in the
	// reference system. Ours packs runs of them.
	chunks int
}

// newSession generates a session of n events.
func newSession(n int) (*session, error) {
	body, failed, err := bodies()
	if err != nil {
		return nil, err
	}
	s := &session{Log: foldtest.SessionLog(n, body)}
	for i, payload := range s.Payloads {
		s.bytes += int64(len(payload))
		s.chunks += chunks(s.Events[i].Body)
	}
	return s, *failed
}

// bodies returns a function that builds the bodies of one session's requests in order, and where it leaves its error.
func bodies() (foldtest.BodyFunc, *error, error) {
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{DigestOnly: true})
	if err != nil {
		return nil, nil, err
	}
	failed := new(error)
	return func(r *fold.Request, src objects.Source) (string, events.BodyDigest) {
		body, err := builder.Build(r, src)
		*failed = errors.Join(*failed, err)
		return builder.Codec(), body.Digest()
	}, failed, nil
}

func chunks(body events.Body) int {
	run, ok := body.(*events.AssistantChunk)
	if !ok {
		return 1
	}
	n := 0
	for i := range run.Chunks {
		n += max(1, len(run.Chunks[i].Texts))
	}
	return n
}

// writeFile writes the payloads to a file, one a line: they hold no line feeds.
func (s *session) writeFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the session: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	for _, payload := range s.Payloads {
		w.Write(payload)  //nolint:errcheck // Flush reports it
		w.WriteByte('\n') //nolint:errcheck // Flush reports it
	}
	return w.Flush()
}
