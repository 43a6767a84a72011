package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Witness says which receipts are believed, and where they and the verdicts on them are.
type Witness struct {
	// Keys are the public keys of the witnesses whose receipts count. With none nothing is compared with receipts.
	Keys []string
	// Receipts, Wires and Strays are required when there are keys: the receipts of requests, the verdicts on calls, and
	// those on receipts.
	Receipts, Wires, Strays Records
}

func (w *Witness) on() bool { return len(w.Keys) > 0 }

func (w *Witness) validate() error {
	if w.on() && (w.Receipts == nil || w.Wires == nil || w.Strays == nil) {
		return errors.New("verifier: with Witness.Keys its Receipts, Wires and Strays are required")
	}
	return nil
}

// calls compares the calls of one session with their receipts, as the log shows their ends.
type calls struct {
	verifier  *Verifier
	session   events.ID
	baseline  position // the newest wire verdict when the log was opened
	published position // the newest one now, by anybody

	next     uint64                // the first place of WITNESS that was not read
	skipped  bool                  // places before the first one that was read may hold receipts of calls to come
	receipts []audit.PlacedReceipt // those that were read, of calls that were not settled yet

	permits uint64    // the newest llm/stream that was applied
	stored  time.Time // when the log stored it

	due    *audit.Call    // settled and not compared yet
	dueSeq uint64         // the message that has settled it
	sent   time.Time      // when the log stored its llm/stream, zero when that is not known
	unsent *audit.Verdict // the verdict on it, when it is known
}

// openCalls returns what compares the session's calls; nil when there is no witness.
func (v *Verifier) openCalls(ctx context.Context, session events.ID) (*calls, error) {
	if !v.cfg.Witness.on() {
		return nil, nil
	}
	p, err := v.newestOf(ctx, v.cfg.Witness.Wires, session)
	if err != nil {
		return nil, err
	}
	c := &calls{verifier: v, session: session, baseline: p, published: p, next: 1}
	if p.verdict.Receipt > 0 { // most receipts are stored when the call before has ended
		c.next, c.skipped = p.verdict.Receipt+1, true
	}
	return c, nil
}

// owed reports whether a call that the message seq has settled still wants a wire verdict; signed is the newest verdict of
// the other kinds when the log was opened. It stands behind the wire verdicts of all calls that were settled before it. Where
// no call has a wire verdict yet, those were settled when no witness was there.
func (c *calls) owed(call *audit.Call, seq uint64, signed *audit.Verdict) bool {
	return call.Seq() > c.baseline.verdict.Seq && (c.baseline.place > 0 || seq > signed.Seq)
}

// take takes a call that the message seq has settled.
func (c *calls) take(call *audit.Call, seq uint64, signed *audit.Verdict) {
	if !c.owed(call, seq, signed) {
		return
	}
	if signed.Kind == audit.KindRequest && signed.Seq == call.Seq() { // it was judged before this process
		call.SetRebuilt(signed.Rebuilt)
	}
	c.due, c.dueSeq, c.unsent, c.sent = call, seq, nil, time.Time{}
	if c.permits == call.Seq() {
		c.sent = c.stored
	}
}

// see takes a message that was applied.
func (c *calls) see(m *eventlog.Message) {
	if m.Type == events.TypeLLMStream {
		c.permits, c.stored = m.Seq, m.Stored
	}
}

// settle publishes the verdict on the call that is due. The error wraps [audit.ErrCouldNotCheck] when the receipts cannot
// be read. It may be called again.
func (c *calls) settle(ctx context.Context) error {
	if c.due == nil {
		return nil
	}
	if c.unsent == nil {
		receipt, err := c.receipt(ctx)
		if err != nil {
			return fmt.Errorf("session %s: receipt of event %d: %w: %w", c.session, c.due.Seq(), audit.ErrCouldNotCheck, err)
		}
		required := true
		if receipt == nil && c.due.Answered {
			if required, err = c.required(ctx); err != nil {
				return fmt.Errorf("session %s: receipt of event %d: %w: %w", c.session, c.due.Seq(), audit.ErrCouldNotCheck, err)
			}
		}
		c.unsent = c.due.Wire(receipt, required)
	}
	if err := c.accuse(ctx); err != nil {
		return err
	}
	seq := c.due.Seq()
	c.receipts = slices.DeleteFunc(c.receipts, func(p audit.PlacedReceipt) bool { return p.Receipt.Seq <= seq })
	c.due, c.unsent = nil, nil
	return nil
}

// accuse publishes the verdict that is not published yet, if any, unless it accuses a receipt of which a stray verdict says the
// same: that receipt was looked at before the log showed the end of the call, or came after that.
func (c *calls) accuse(ctx context.Context) error {
	if c.unsent == nil {
		return nil
	}
	if c.unsent.Rule == audit.RuleWire {
		c.verifier.accusing.Lock()
		defer c.verifier.accusing.Unlock()
		accused, err := c.verifier.accused(ctx, c.session, c.unsent.Receipt)
		if err != nil {
			return fmt.Errorf("session %s: receipt of event %d: %w: %w", c.session, c.due.Seq(), audit.ErrCouldNotCheck, err)
		}
		if accused {
			return nil
		}
	}
	return c.flush(ctx)
}

// accused reports whether a stray verdict is about the receipt at the place.
func (v *Verifier) accused(ctx context.Context, session events.ID, place uint64) (bool, error) {
	for record, err := range v.cfg.Witness.Strays.Read(ctx, session, 1) {
		if err != nil {
			return false, err
		}
		if old, err := v.believed(&record); err == nil && old.Receipt == place {
			return true, nil
		}
	}
	return false, nil
}

// receipt returns the first receipt of the call that is due, nil when there is none that is believed.
func (c *calls) receipt(ctx context.Context) (*audit.PlacedReceipt, error) {
	p, err := c.read(ctx)
	if p != nil || err != nil || !c.due.Answered {
		return p, err
	}
	if err := current(ctx, c.verifier.cfg.Witness.Receipts); err != nil {
		return nil, err
	}
	if p, err = c.read(ctx); p != nil || err != nil || !c.skipped {
		return p, err
	}
	c.next, c.skipped, c.receipts = 1, false, nil // an earlier call may have passed later than this one
	return c.read(ctx)
}

// required reports whether the call that is due must have passed a witness: its llm/stream was stored behind the first receipt
// of all, whoever has signed that, or there is none at all. A call that was permitted before is from a time without a witness.
func (c *calls) required(ctx context.Context) (bool, error) {
	for record, err := range c.verifier.cfg.Witness.Receipts.Read(ctx, "", 1) {
		if err != nil {
			return false, err
		}
		return c.sent.IsZero() || record.Stored.IsZero() || !c.sent.Before(record.Stored), nil
	}
	return true, nil
}

// current waits until a mirror holds what it must hold. The error says that what it lacks is not known to be missing.
func current(ctx context.Context, source any) error {
	if m, ok := source.(interface {
		Current(ctx context.Context) error
	}); ok {
		return m.Current(ctx)
	}
	return nil
}

// maxReceipts bounds how many receipts of calls that are not settled yet are kept of a session. An honest one has one or two.
const maxReceipts = 256

// read reads the receipts on and looks for that of the call which is due. What it cannot keep it reads again for the next one.
func (c *calls) read(ctx context.Context) (*audit.PlacedReceipt, error) {
	if p := c.due.Receipt(c.receipts); p != nil {
		return p, nil
	}
	full := false
	for record, err := range c.verifier.cfg.Witness.Receipts.Read(ctx, c.session, c.next) {
		if err != nil {
			return nil, err
		}
		r, err := c.verifier.receiptOf(ctx, &record)
		counts := err == nil && r.Kind == audit.ReceiptRequest && r.Seq >= c.due.Seq()
		if counts && len(c.receipts) >= maxReceipts {
			if p := c.due.Receipt([]audit.PlacedReceipt{{Place: record.Seq, Receipt: r}}); p != nil {
				return p, nil
			}
			full = true
		}
		if full {
			continue
		}
		c.next = record.Seq + 1
		if counts {
			c.receipts = append(c.receipts, audit.PlacedReceipt{Place: record.Seq, Receipt: r})
		}
	}
	return c.due.Receipt(c.receipts), nil
}

// flush publishes the verdict that is not published yet. One of another verifier is as good.
func (c *calls) flush(ctx context.Context) error {
	v := c.verifier
	for c.published.verdict.Seq < c.unsent.Seq {
		id := fmt.Sprintf("%s.%d.%s", c.session, c.unsent.Seq, audit.KindWire)
		place, err := v.publish(ctx, v.cfg.Witness.Wires, id, c.unsent, c.published.place)
		if err == nil {
			c.published = position{place: place, verdict: *c.unsent}
			v.metrics.countWitness(c.unsent)
			if c.unsent.Result != audit.Match {
				v.cfg.Log.ErrorContext(ctx, "not a match", slog.String("session", string(c.session)), slog.String("verdict", c.unsent.String()))
			}
			return nil
		}
		if !errors.Is(err, jetstream.ErrConflict) {
			return err
		}
		p, err := v.newestOf(ctx, v.cfg.Witness.Wires, c.session)
		if err != nil {
			return err
		}
		if p.place == c.published.place {
			return fmt.Errorf("%w: publish verdict: another one stands in the way and is not the newest", eventlog.ErrUnavailable)
		}
		c.published = p
	}
	return nil
}

// publish signs the verdict, once, and appends it behind the place after.
func (v *Verifier) publish(ctx context.Context, records Records, id string, found *audit.Verdict, after uint64) (place uint64, err error) {
	if err := v.sign(found); err != nil {
		return 0, err
	}
	payload, err := found.Encode()
	if err != nil {
		return 0, err
	}
	if place, err = records.Append(ctx, found.Session, id, payload, after); err != nil {
		return 0, fmt.Errorf("publish verdict: %w", err)
	}
	return place, nil
}

// receiptOf returns the receipt that a record holds. The error says why it is not believed, which is counted: nothing is
// built on it, and nobody is accused by it.
func (v *Verifier) receiptOf(ctx context.Context, record *jetstream.Record) (audit.Receipt, error) {
	ignore := func(why string, err error) (audit.Receipt, error) {
		v.metrics.ignored.WithLabelValues(why).Inc()
		v.cfg.Log.WarnContext(ctx, "a receipt is not believed", slog.Uint64("place", record.Seq), slog.Any("error", err))
		return audit.Receipt{}, err
	}
	r, err := audit.DecodeReceipt(record.Payload)
	switch {
	case err != nil:
		return ignore(ignoredMalformed, err)
	case r.Session != record.Session && (r.Session != "" || record.Session != audit.NoSession):
		return ignore(ignoredMalformed, fmt.Errorf("%w: it is about session %q", audit.ErrReceipt, r.Session))
	case !slices.Contains(v.cfg.Witness.Keys, r.Witness):
		return ignore(ignoredUntrusted, fmt.Errorf("witness %s is not trusted", r.Witness))
	}
	if err := r.Verify(); err != nil {
		return ignore(ignoredSignature, err)
	}
	return r, nil
}

// mayHavePassed reports whether there is a receipt of a request for the call that the event seq permits, or that is not known.
func (v *Verifier) mayHavePassed(ctx context.Context, session events.ID, seq uint64) bool {
	if current(ctx, v.cfg.Witness.Receipts) != nil {
		return true
	}
	for record, err := range v.cfg.Witness.Receipts.Read(ctx, session, 1) {
		if err != nil {
			return true
		}
		if r, err := audit.DecodeReceipt(record.Payload); err == nil && r.Kind == audit.ReceiptRequest && r.Seq == seq {
			return true
		}
	}
	return false
}

// owesWire reports whether a session whose newest verdict is signed, and whose log goes on behind it, may have a call whose
// end was not looked at. The log behind the newest verdict has no further llm/stream.
func (v *Verifier) owesWire(ctx context.Context, session events.ID, signed *audit.Verdict) (bool, error) {
	if !v.cfg.Witness.on() || signed.Kind == audit.KindHead {
		return false, nil
	}
	p, err := v.newestOf(ctx, v.cfg.Witness.Wires, session)
	if errors.Is(err, follow.ErrFinal) { // who opens the session says so
		return true, nil
	}
	return p.verdict.Seq < signed.Seq, err
}
