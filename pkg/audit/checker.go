package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// ErrCouldNotCheck is wrapped by the error of [Checker.Apply] when the objects, or the log of a fork's parent, gave no
// answer: nothing was found, neither good nor bad. The caller applies the same message again later.
var ErrCouldNotCheck = errors.New("could not check")

// Objects returns the verified bytes of an object. Its errors are those of [objects.Get].
type Objects func(ctx context.Context, ref objects.Ref) ([]byte, error)

// FromStore fetches from a store.
func FromStore(s objects.Store) Objects {
	return func(ctx context.Context, ref objects.Ref) ([]byte, error) { return objects.Get(ctx, s, ref) }
}

// CheckerConfig says what is checked. Session and Objects are required.
type CheckerConfig struct {
	Session events.ID
	Objects Objects
	// Quiet is the last sequence up to which events are only folded: their requests were checked before. 0: none.
	Quiet uint64
	// Cold builds every request from its first byte with fresh objects instead of going on from the one before.
	Cold bool
	// Parents looks up what the first event of a fork says about its parent. Nil: that is not looked at.
	Parents Parents
	// Actual returns the body that was really sent for the request of the event, if anybody kept it. It serves only to
	// show where a mismatch starts. Nil: nobody did.
	Actual func(ctx context.Context, seq uint64) (body []byte, ok bool)
	// Withheld says which messages come without their content. Nil: all are as they are stored.
	Withheld *Withheld
}

// Checker checks the log of one session, message by message. It is not safe for concurrent use.
type Checker struct {
	cfg    CheckerConfig
	state  *fold.State
	seq    uint64
	chain  events.Hash
	broken *Verdict // what broke the log
	ids    eventIDs // of all events so far
	calls  calls    // that the log permits

	decoder events.Decoder

	withheld withheldState

	fork      *fork                    // what the first event says of the parent, nil when there is nothing to look at
	asking    bool                     // the parent's log gave no answer yet: the first event is to be applied again
	lineage   Lineage                  // how the session stands to its parent
	waiting   *waiting                 // the request that could not be checked yet
	builders  map[string]codec.Builder // of the loop's requests: those of auxiliary calls have a builder each
	held      *objects.Set             // the objects of the header in force, and of messages not built yet
	heldBytes int64                    // how long they are in all
	offered   offered                  // of the last header with tools in an object
}

// waiting is a request that is folded and not judged.
type waiting struct {
	verdict Verdict
	stream  *events.LLMStream
	request fold.Request
}

// NewChecker returns a checker before the first event of the log.
func NewChecker(cfg CheckerConfig) *Checker {
	return &Checker{cfg: cfg, state: fold.New(cfg.Session), builders: make(map[string]codec.Builder), held: new(objects.Set)}
}

// Seq returns the sequence of the last message applied.
func (c *Checker) Seq() uint64 { return c.seq }

// Chain returns the hash of that message's payload.
func (c *Checker) Chain() events.Hash { return c.chain }

// Broken returns the verdict that broke the log; ok is false while it is whole.
func (c *Checker) Broken() (v Verdict, ok bool) {
	if c.broken == nil {
		return Verdict{}, false
	}
	return *c.broken, true
}

// Apply takes the next message and returns the verdict that it calls for: on every request, on the end of every turn
// and of the session, on the first event of a fork whose parent's log contradicts it, and on the first message that breaks
// the log. It is nil for all others, and for messages up to
// CheckerConfig.Quiet unless one breaks the log. Behind a broken event every request gets the same result.
//
// The error wraps [ErrCouldNotCheck]: nothing else is wrong, and the same message is to be applied again.
func (c *Checker) Apply(ctx context.Context, m eventlog.Message) (*Verdict, error) {
	if c.waiting != nil && m.Seq == c.seq {
		return c.request(ctx)
	}
	if c.asking && m.Seq == c.seq {
		return c.LookAtParent(ctx)
	}
	if c.broken != nil {
		return c.behind(&m), nil
	}
	if m.Seq != c.seq+1 {
		return c.breakAt(&m, BrokenChain, RuleSequence, fmt.Sprintf("event %d stands where event %d belongs", m.Seq, c.seq+1)), nil
	}
	if v, ok := c.chained(&m); ok {
		return v, nil
	}
	e, err := c.event(&m)
	if err != nil {
		result, rule := payloadFault(err)
		return c.breakAt(&m, result, rule, err.Error()), nil
	}
	// The chain is looked at first: where it does not hold, an event was put here that is not the writer's.
	if e.Prev == c.state.Head() && !c.ids.add(e.ID) {
		return c.breakAt(&m, InvalidLog, RuleID, fmt.Sprintf("an earlier event has the ID %s too", e.ID)), nil
	}
	if err := c.state.Apply(&e); err != nil {
		result, rule := foldFault(err)
		return c.breakAt(&m, result, rule, err.Error()), nil
	}
	c.seq = m.Seq
	c.chain, _ = e.Hash() // a decoded event has one
	seen := c.verdict(&m, KindWire, c.chain)
	c.calls.see(&seen, m.Type, e.Body)
	if b, ok := e.Body.(*events.SessionCreated); ok && b.Parent != (events.Parent{}) && c.cfg.Parents != nil && !e.Withheld() {
		c.fork = &fork{verdict: c.verdict(&m, KindLog, c.chain), parent: b.Parent}
	}
	if m.Seq <= c.cfg.Quiet {
		return nil, nil
	}
	c.unchecked(&m, &e)
	switch b := e.Body.(type) {
	case *events.SessionCreated:
		return c.LookAtParent(ctx)
	case *events.LLMStream:
		return c.start(ctx, c.verdict(&m, KindRequest, c.chain), b)
	case *events.TurnEnd, *events.SessionClosed:
		v := c.verdict(&m, KindHead, c.chain)
		v.Result = Match
		return &v, nil
	}
	return nil, nil
}

// Gap takes the news that the message seq cannot be read: it is missing, or what stands there is no event. It returns
// the verdict, nil when the log was broken before.
func (c *Checker) Gap(seq uint64, cause error) *Verdict {
	if c.broken != nil {
		return nil
	}
	rule := RuleSequence
	if errors.Is(cause, eventlog.ErrCorrupt) {
		rule = RuleMessage
	}
	return c.fail(Verdict{Kind: KindLog, Session: c.cfg.Session, Seq: seq}, BrokenChain, rule, cause.Error())
}

// payloadFault classifies an error of [eventlog.Message.Event].
func payloadFault(err error) (Result, string) {
	switch {
	case errors.Is(err, eventlog.ErrCorrupt):
		return BrokenChain, RuleMessage
	case errors.Is(err, events.ErrVersion), errors.Is(err, events.ErrUnknownType):
		return InvalidLog, RuleVersion
	}
	return InvalidLog, RulePayload
}

// foldFault classifies an error of [fold.State.Apply].
func foldFault(err error) (Result, string) {
	broken, ok := errors.AsType[*fold.Error](err)
	if !ok {
		return InvalidLog, RulePayload
	}
	if broken.Rule == fold.RuleSealed || broken.Rule == fold.RuleSequence || broken.Rule == fold.RuleChain {
		return BrokenChain, string(broken.Rule)
	}
	return InvalidLog, string(broken.Rule)
}

// verdict returns a verdict without a result on the message, whose payload hashes to chain.
func (c *Checker) verdict(m *eventlog.Message, kind Kind, chain events.Hash) Verdict {
	v := Verdict{Kind: kind, Session: c.cfg.Session, Seq: max(m.Seq, 1), Chain: chain}
	if m.ID.Valid() {
		v.Event = m.ID
	}
	return v
}

// breakAt records that the message breaks the log.
func (c *Checker) breakAt(m *eventlog.Message, result Result, rule, reason string) *Verdict {
	v := c.verdict(m, KindLog, c.cfg.Withheld.hash(m))
	if m.Type == events.TypeLLMStream {
		v.Kind = KindRequest
		describe(&v, m.Payload)
	}
	return c.fail(v, result, rule, reason)
}

// Break records that the log is broken, as v says: the caller knows it from elsewhere. Before the first message the checker
// goes on behind v.Seq.
func (c *Checker) Break(v Verdict) {
	c.broken, c.calls = &v, calls{copied: c.calls.copied}
	if c.seq == 0 {
		c.seq = v.Seq
	}
}

func (c *Checker) fail(v Verdict, result Result, rule, reason string) *Verdict {
	v.Result, v.Rule, v.Reason = result, clean(rule, maxName), clean(reason, maxReason)
	c.broken, c.calls = &v, calls{copied: c.calls.copied}
	return &v
}

// behind returns the verdict on a message behind the one that broke the log.
func (c *Checker) behind(m *eventlog.Message) *Verdict {
	c.seq, c.chain = m.Seq, c.cfg.Withheld.hash(m)
	if m.Type != events.TypeLLMStream {
		return nil
	}
	v := c.verdict(m, KindRequest, c.chain)
	describe(&v, m.Payload)
	v.Result, v.Rule = c.broken.Result, RuleEarlier
	v.Reason = clean(fmt.Sprintf("the log broke at event %d, rule %q", c.broken.Seq, c.broken.Rule), maxReason)
	return &v
}

// describe fills in what the payload of a request says, if it can be read.
func describe(v *Verdict, payload []byte) {
	e, err := events.Decode(payload)
	if err != nil {
		return
	}
	if b, ok := e.Body.(*events.LLMStream); ok {
		describeStream(v, b)
	}
}

func describeStream(v *Verdict, b *events.LLMStream) {
	v.Turn, v.Step, v.Attempt = b.Turn, b.Step, b.Attempt
	v.Codec, v.Recorded = clean(b.Codec, maxName), b.Body
}
