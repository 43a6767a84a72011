package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// waitFlag is the value of --wait: how long to wait, 0 not at all.
type waitFlag time.Duration

// flag adds --wait to a command; usage goes on with what is waited for.
func (w *waitFlag) flag(cmd *cobra.Command, usage string) {
	cmd.Flags().Var(w, "wait", "wait so long "+usage)
	cmd.Flags().Lookup("wait").DefValue = "" // not waiting is not worth a word
}

// String implements the flag's value.
func (w *waitFlag) String() string { return time.Duration(*w).String() }

// Type implements the flag's value.
func (w *waitFlag) Type() string { return "duration" }

// Set implements the flag's value.
func (w *waitFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	if d < 0 {
		return errors.New("it is negative: want a time such as 30s, or 0 for not to wait")
	}
	*w = waitFlag(d)
	return nil
}

// claimOf returns the input that an event claims, the zero Claim when it claims none.
func claimOf(e *events.Event) events.Claim {
	switch b := e.Body.(type) {
	case *events.UserMessage:
		if b.InboxSeq > 0 {
			return events.Claim{InboxSeq: b.InboxSeq, InputID: events.ID(b.Message.ID)}
		}
	case *events.SessionConfigured:
		return b.Claim
	case *events.SessionClosed:
		return b.Claim
	case *events.TurnCancelled:
		return b.Claim
	case *events.CompactionStart:
		return b.Claim
	case *events.InputDropped:
		return b.Claim
	}
	return events.Claim{}
}

// waiter looks at the events behind an input until what the input asked for is done: for a prompt, its turn has ended;
// for a cancel, the turn that it stopped has; for a compact, the compaction has; the others are done when an event claims
// them. An input is found by its place and its id together: a fork's log holds claims of its parent's inputs.
type waiter struct {
	session    events.ID
	claim      events.Claim
	kind       events.InputKind
	say        func(text string) error              // what the model says in a prompt's turn
	outcome    func(events.CompactionOutcome) error // how the compaction that was asked for ended
	claimed    bool
	turn       int64  // cancel: the turn that it stops
	compaction string // compact: the compaction's id
}

// observe takes the next event; done reports that nothing more is to be waited for.
func (w *waiter) observe(e *events.Event) (done bool, err error) {
	if !w.claimed && claimOf(e) == w.claim {
		w.claimed = true
		return w.claimedBy(e)
	}
	switch b := e.Body.(type) {
	case *events.SessionClosed:
		return false, fmt.Errorf("session %s was closed before input %d was done", w.session, w.claim.InboxSeq)
	case *events.AssistantMessage:
		if text := textOf(b.Message.Content); w.claimed && w.kind == events.InputPrompt && text != "" {
			return false, w.say(text)
		}
	case *events.TurnEnd:
		switch {
		case w.claimed && w.kind == events.InputPrompt:
			return true, turnError(b)
		case w.claimed && w.kind == events.InputCancel:
			return b.Turn == w.turn, nil
		}
	case *events.CompactionEnd:
		if w.compaction != "" && b.CompactionID == w.compaction {
			return true, w.compacted(b)
		}
	}
	return false, nil
}

// claimedBy takes the event that claims the input.
func (w *waiter) claimedBy(e *events.Event) (done bool, err error) {
	switch b := e.Body.(type) {
	case *events.InputDropped:
		return false, fmt.Errorf("session %s: input %d was refused: %s", w.session, w.claim.InboxSeq, b.Cause)
	case *events.TurnCancelled:
		w.turn = b.Turn
		return b.Turn == 0, nil
	case *events.CompactionStart:
		w.compaction = b.CompactionID
		return false, nil
	}
	return w.kind != events.InputPrompt, nil
}

func (w *waiter) compacted(b *events.CompactionEnd) error {
	if err := w.outcome(b.Outcome); err != nil || b.Outcome == events.CompactionCompleted {
		return err
	}
	return fmt.Errorf("the compaction of session %s has changed nothing: %s: %s", w.session, b.Outcome, b.Error)
}

// turnError returns how a turn ended, nil when it was completed.
func turnError(b *events.TurnEnd) error {
	switch b.Kind {
	case events.TurnError:
		return fmt.Errorf("turn %d failed: %s: %s", b.Turn, b.Failure.Code, b.Failure.Message)
	case events.TurnAborted:
		return fmt.Errorf("turn %d was cancelled: %s", b.Turn, b.Cause)
	case events.TurnBlocked:
		return fmt.Errorf("turn %d was stopped: %s", b.Turn, b.Cause)
	case events.TurnMaxTokens:
		return fmt.Errorf("turn %d ended in the middle: the answer has reached its limit of tokens (refold session configure --max-tokens)", b.Turn)
	case events.TurnInterrupted:
		return fmt.Errorf("turn %d was given up: its worker died", b.Turn)
	case events.TurnCompleted:
	}
	return nil
}

// waitFor follows the session from a sequence on until the waiter is satisfied.
func (g *globals) waitFor(ctx context.Context, client *jetstream.Client, from uint64, w *waiter, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	log, err := openWhenMade(ctx, client, w.session)
	if err == nil {
		err = follow(ctx, client, w.session, log, from, func(m *eventlog.Message) (bool, error) {
			e, err := m.Event()
			if err != nil {
				return false, err
			}
			done, err := w.observe(&e)
			return !done, err
		})
	}
	switch late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil; {
	case late && log == nil && errors.Is(err, eventlog.ErrNotFound):
		return fmt.Errorf("session %s was not made in time: is a worker running? Its log says why when the input cannot be used; otherwise it is kept", w.session)
	case late && w.kind == events.InputInject:
		return fmt.Errorf("session %s: input %d is not used after %v: it is kept for the session's next step", w.session, w.claim.InboxSeq, limit)
	case late:
		return fmt.Errorf("session %s: input %d is not done after %v: is a worker running? The input is kept", w.session, w.claim.InboxSeq, limit)
	}
	return err
}

// follow shows the events from a sequence on, and those that come, until show returns false or fails. Hints only make
// it faster: it looks again every second anyway.
func follow(ctx context.Context, client *jetstream.Client, id events.ID, log eventlog.Log, from uint64, show func(*eventlog.Message) (bool, error)) error {
	live, err := client.Live().Subscribe(ctx, id)
	if err != nil {
		return err
	}
	defer live.Close()
	next := max(from, 1)
	for {
		last, err := log.Last(ctx)
		if err != nil {
			return err
		}
		if next <= last {
			for m, err := range log.Read(ctx, next) {
				if err != nil {
					return err
				}
				next = m.Seq + 1
				if more, err := show(&m); err != nil || !more {
					return err
				}
			}
		}
		const again = time.Second
		wait, cancel := context.WithTimeout(ctx, again)
		_, err = live.Next(wait)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// say prints what the model said, line by line; what a terminal might take for a command is made harmless.
func (g *globals) say(w io.Writer, text string) error {
	if g.json {
		return printJSON(w, map[string]string{"text": string(events.BytesFromText(text))})
	}
	for line := range strings.Lines(strings.TrimSuffix(text, "\n") + "\n") {
		if _, err := fmt.Fprintln(w, program.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

// openWhenMade opens a session's log as soon as there is one. When ctx ends before, the error wraps
// [eventlog.ErrNotFound] and that of ctx.
func openWhenMade(ctx context.Context, client *jetstream.Client, id events.ID) (eventlog.Log, error) {
	for {
		log, err := client.Logs().Open(ctx, id)
		if !errors.Is(err, eventlog.ErrNotFound) {
			return log, err
		}
		const again = 50 * time.Millisecond
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}
