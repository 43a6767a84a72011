package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	// sightings is in how many looks in a row something must be absent before that is believed: a new leader may still be
	// applying what its predecessor acknowledged.
	sightings = 2
	// patience is how many looks a call may stay without an end before a receipt that differs from it is reported.
	patience = 3
	// looksAtRest bounds how many sessions that have no new receipts one look compares after the start.
	looksAtRest = 100
	// maxSuspects bounds how many receipts of one session wait for another look. Those behind them are not read before.
	maxSuspects = 1024
)

// strays looks for receipts that no log permits. It belongs to one goroutine.
type strays struct {
	verifier *Verifier
	sessions map[events.ID]*receipts
	atStart  map[events.ID]uint64 // how many receipts each session had at the first look, that was not looked at since
}

// receipts is what is known of the receipts of one session.
type receipts struct {
	count   uint64             // how many there were at the last complete look; receipts are never deleted
	next    uint64             // the first place that was not looked at
	highest uint64             // the highest sequence of a call so far
	suspect map[uint64]suspect // by place: receipts that wait for another look
	places  []uint64           // of the suspects, in order

	wireNext  uint64              // the first place of a wire verdict that was not read
	wires     map[uint64]struct{} // places of receipts with a wire verdict that were not come to yet
	strayNext uint64              // the first place of a stray verdict that was not read
	strays    map[uint64]struct{} // places of receipts with a stray verdict; empty while there is nothing to publish
}

func newReceipts() *receipts { return &receipts{next: 1, wireNext: 1, strayNext: 1} }

// suspect is a receipt that is to be looked at again.
type suspect struct {
	receipt audit.Receipt
	seen    int
}

func newStrays(v *Verifier) *strays {
	return &strays{verifier: v, sessions: make(map[events.ID]*receipts)}
}

// run looks until ctx ends.
func (s *strays) run(ctx context.Context) {
	for {
		err := s.look(ctx)
		if err != nil && ctx.Err() == nil {
			s.verifier.metrics.retries.WithLabelValues(causeWitness).Inc()
			s.verifier.cfg.Log.WarnContext(ctx, "look at the receipts not complete, it is made again", slog.Any("error", err))
		}
		if !follow.Wait(ctx, s.verifier.cfg.Sweep) {
			return
		}
	}
}

// look compares the receipts of all sessions that have new ones, and of some that were not looked at since the start. What
// fails about one session keeps no other from being looked at.
func (s *strays) look(ctx context.Context) error {
	v := s.verifier
	counts, err := v.cfg.Witness.Receipts.Counts(ctx)
	if err != nil {
		return err
	}
	ours := func(id events.ID) bool { return v.cfg.Partition == nil || id == audit.NoSession || v.cfg.Partition(id) }
	maps.DeleteFunc(counts, func(id events.ID, _ uint64) bool { return !ours(id) })
	if s.atStart == nil {
		s.atStart = maps.Clone(counts)
	}
	maps.DeleteFunc(s.sessions, func(id events.ID, _ *receipts) bool { return counts[id] == 0 })
	var first error
	for _, id := range s.due(counts) {
		delete(s.atStart, id)
		v.unread.Store(int64(len(s.atStart)))
		if err := s.session(ctx, id, counts[id]); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if first == nil {
				first = fmt.Errorf("session %s: %w", id, err)
			}
		}
	}
	v.receiptLooks.end(v.cfg.Clock(), first == nil)
	return first
}

// due returns the sessions that a look compares: first the calls without a session, then those with something new, then the
// next ones that were not looked at since the start, by their IDs.
func (s *strays) due(counts map[events.ID]uint64) []events.ID {
	var fresh, known []events.ID
	for id, n := range counts { // sorted below
		r := s.sessions[id]
		switch {
		case id == audit.NoSession && r == nil:
			known = append(known, id) // of the lowest ID
		case r == nil && n == s.atStart[id]:
			fresh = append(fresh, id)
		case r == nil || r.count != n || len(r.places) > 0:
			known = append(known, id)
		}
	}
	slices.Sort(known)
	slices.Sort(fresh)
	return append(known, fresh[:min(len(fresh), looksAtRest)]...)
}

// session compares what is new of a session's receipts.
func (s *strays) session(ctx context.Context, id events.ID, count uint64) error {
	r := s.sessions[id]
	if r == nil {
		r = newReceipts()
		s.sessions[id] = r
	}
	look := &strayLook{verifier: s.verifier, session: id, receipts: r}
	for _, place := range slices.Clone(r.places) {
		if err := look.judge(ctx, place, r.suspect[place].receipt); err != nil {
			return err
		}
	}
	for record, err := range s.verifier.cfg.Witness.Receipts.Read(ctx, id, r.next) {
		if err != nil {
			return err
		}
		if len(r.places) >= maxSuspects {
			return nil // count stays, so that the next look goes on
		}
		receipt, err := s.verifier.receiptOf(ctx, &record)
		if err == nil {
			err = look.judge(ctx, record.Seq, receipt)
			if err != nil {
				return err
			}
		}
		r.next = record.Seq + 1
	}
	r.count = count
	maps.DeleteFunc(r.wires, func(place uint64, _ struct{}) bool {
		_, waits := r.suspect[place]
		return place < r.next && !waits
	})
	if !look.published { // the next finding reads them again
		r.strays, r.strayNext = nil, 1
	}
	return nil
}

// keep has a receipt looked at again, and returns how often it was looked at.
func (r *receipts) keep(place uint64, receipt *audit.Receipt) int {
	old, ok := r.suspect[place]
	if !ok {
		r.places = append(r.places, place)
	}
	if r.suspect == nil {
		r.suspect = make(map[uint64]suspect)
	}
	r.suspect[place] = suspect{receipt: *receipt, seen: old.seen + 1}
	r.highest = max(r.highest, receipt.Seq) // a later one of the same call is not its first
	return old.seen + 1
}

// done ends the looks at a receipt.
func (r *receipts) done(p *audit.PlacedReceipt) {
	r.highest = max(r.highest, p.Receipt.Seq)
	if _, ok := r.suspect[p.Place]; ok {
		delete(r.suspect, p.Place)
		r.places = slices.DeleteFunc(r.places, func(place uint64) bool { return place == p.Place })
	}
}

// strayLook is one look at a session's receipts. What it reads of the session it reads once.
type strayLook struct {
	verifier *Verifier
	session  events.ID
	receipts *receipts

	log       eventlog.Log
	opened    bool // log is set, or nil because there is none
	copied    uint64
	signed    uint64 // where there is no log: the highest sequence with a verdict that is believed
	asked     bool   // signed is set
	published bool   // a verdict was, or was found to be
}

// judge looks at one receipt. The error says that there was no answer.
func (l *strayLook) judge(ctx context.Context, place uint64, receipt audit.Receipt) error {
	r := l.receipts
	p := audit.PlacedReceipt{Place: place, Receipt: receipt}
	if receipt.Kind != audit.ReceiptRequest || receipt.Body.Bytes == 0 {
		return nil
	}
	_, waits := r.suspect[place]
	if receipt.Seq > r.highest || waits { // most receipts are of new calls that have a wire verdict, or get one soon
		if done, err := l.compared(ctx, &p); err != nil || done {
			if done {
				r.done(&p)
			}
			return err
		}
	}
	known, call, err := l.permitted(ctx, &receipt)
	if err != nil {
		return err
	}
	var earlier uint64
	if call != nil {
		if earlier, err = l.earlier(ctx, &p); err != nil {
			return err
		}
	}
	found := audit.Stray(&p, known, call, earlier)
	again := 1 // of what is there nobody needs a second look
	switch {
	case found != nil && call == nil && l.session != audit.NoSession:
		again = sightings
		if gone, err := l.gone(ctx, known, &p); err != nil || gone {
			if gone {
				r.done(&p)
			}
			return err
		}
		if err := l.absent(ctx, known, receipt.Seq); err != nil {
			return err
		}
	case found == nil && call != nil && earlier == 0:
		found, again = audit.Late(&p, call), patience
	}
	if found == nil {
		if receipt.Seq == 0 { // nothing is known of what it holds
			l.verifier.metrics.uploads.Inc()
		}
		r.done(&p)
		return nil
	}
	if again > 1 && r.keep(place, &receipt) < again {
		return nil
	}
	if found.Rule == audit.RuleWire {
		l.verifier.accusing.Lock()
		defer l.verifier.accusing.Unlock()
		if done, err := l.compared(ctx, &p); err != nil || done { // a wire verdict says the same since
			if done {
				r.done(&p)
			}
			return err
		}
	}
	if err := l.publish(ctx, found); err != nil {
		return err
	}
	r.done(&p)
	return nil
}

// compared reports whether there is a wire verdict with this receipt.
func (l *strayLook) compared(ctx context.Context, p *audit.PlacedReceipt) (bool, error) {
	r := l.receipts
	if _, ok := r.wires[p.Place]; ok {
		delete(r.wires, p.Place)
		return true, nil
	}
	for record, err := range l.verifier.cfg.Witness.Wires.Read(ctx, l.session, r.wireNext) {
		if err != nil {
			return false, err
		}
		r.wireNext = record.Seq + 1
		if w, err := l.verifier.believed(&record); err == nil && w.Receipt > 0 {
			if r.wires == nil {
				r.wires = make(map[uint64]struct{})
			}
			r.wires[w.Receipt] = struct{}{}
		}
	}
	_, ok := r.wires[p.Place]
	delete(r.wires, p.Place)
	return ok, nil
}

// permitted returns whether the session has a log, and the call that the receipt names, nil when the log does not hold it.
func (l *strayLook) permitted(ctx context.Context, r *audit.Receipt) (known bool, call *audit.Call, err error) {
	if l.session == audit.NoSession {
		return false, nil, nil
	}
	if !l.opened {
		log, err := l.verifier.cfg.Store.Open(ctx, l.session)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return false, nil, err
		}
		if err == nil {
			l.log = log
			if l.copied, err = copiedOf(ctx, log); err != nil {
				return false, nil, err
			}
		}
		l.opened = true
	}
	if l.log == nil || r.Seq <= l.copied {
		return l.log != nil, nil, nil
	}
	m, ok, err := messageAt(ctx, l.log, r.Seq)
	if err != nil || !ok {
		return true, nil, err
	}
	return true, audit.PermittedBy(l.session, &m), nil
}

// messageAt returns the message at seq; ok is false when the log, as its leader has it, holds none.
func messageAt(ctx context.Context, log eventlog.Log, seq uint64) (m eventlog.Message, ok bool, err error) {
	last, err := log.Last(ctx)
	if err != nil || seq == 0 || seq > last {
		return m, false, err
	}
	for m, err := range log.Read(ctx, seq) {
		if errors.Is(err, eventlog.ErrGap) || errors.Is(err, eventlog.ErrCorrupt) {
			return m, false, nil
		}
		return m, err == nil, err
	}
	return m, false, nil
}

// copiedOf returns the sequence of the last event that a fork has copied, 0 for a session that is none.
func copiedOf(ctx context.Context, log eventlog.Log) (uint64, error) {
	m, ok, err := messageAt(ctx, log, 1)
	if err != nil || !ok {
		return 0, err
	}
	return audit.CopiedBy(&m), nil
}

// earlier returns the place of the first receipt of the same call, when that is another one. Receipts mostly come in the
// order of their calls, so the older ones are seldom asked for.
func (l *strayLook) earlier(ctx context.Context, p *audit.PlacedReceipt) (uint64, error) {
	if p.Receipt.Seq > l.receipts.highest {
		return 0, nil
	}
	for record, err := range l.verifier.cfg.Witness.Receipts.Read(ctx, l.session, 1) {
		if err != nil {
			return 0, err
		}
		if record.Seq >= p.Place {
			break
		}
		r, err := audit.DecodeReceipt(record.Payload)
		if err == nil && r.Kind == audit.ReceiptRequest && r.Session == p.Receipt.Session && r.Seq == p.Receipt.Seq && r.Body.Bytes > 0 &&
			slices.Contains(l.verifier.cfg.Witness.Keys, r.Witness) && r.Verify() == nil {
			return record.Seq, nil
		}
	}
	return 0, nil
}

// absent returns nil when the session, or its event, is not only missing in a mirror that is behind. It waits a little for
// one to catch up: whoever comes again finds it then.
func (l *strayLook) absent(ctx context.Context, known bool, seq uint64) error {
	if known {
		last, err := l.log.Last(ctx)
		if err != nil || seq <= last { // what stands there is no call
			return err
		}
		return current(ctx, l.log)
	}
	return l.verifier.absent(ctx, l.session)
}

// gone reports whether the receipt is of a call that was looked at while the session had its log, which is not there any
// more; another check looks after that. Only verdicts that are believed tell so, and only of the first receipt of a call that
// stands no further in the log than they do. Files are uploaded to no place in it.
func (l *strayLook) gone(ctx context.Context, known bool, p *audit.PlacedReceipt) (bool, error) {
	if known {
		return false, nil
	}
	if err := l.ask(ctx); err != nil || l.signed == 0 || p.Receipt.Seq > l.signed {
		return false, err
	}
	if p.Receipt.Seq == 0 {
		return audit.Stray(p, true, nil, 0) == nil, nil
	}
	earlier, err := l.earlier(ctx, p)
	return earlier == 0, err
}

// ask reads how far a session without a log was signed.
func (l *strayLook) ask(ctx context.Context) error {
	if l.asked {
		return nil
	}
	for record, err := range l.verifier.cfg.Verdicts.Read(ctx, l.session, 1) {
		if err != nil {
			return err
		}
		if old, err := l.verifier.believed(&record); err == nil {
			l.signed = max(l.signed, old.Seq)
		}
	}
	l.asked = true
	return nil
}

// publish publishes a stray verdict, once for the receipt whoever finds it. The error wraps [eventlog.ErrUnavailable] when
// something keeps it from being stored that is no verdict.
func (l *strayLook) publish(ctx context.Context, found *audit.Verdict) error {
	v, r := l.verifier, l.receipts
	if err := v.sign(found); err != nil {
		return err
	}
	// Nobody can use the ID before. What keeps a receipt's verdict single is the place that it is appended behind.
	id := fmt.Sprintf("%s.%d.%s.%x", found.Session, found.Receipt, audit.KindStray, found.Signature[:8])
	l.published = true
	for tried := false; ; tried = true {
		before := r.strayNext
		for record, err := range v.cfg.Witness.Strays.Read(ctx, found.Session, r.strayNext) {
			if err != nil {
				return err
			}
			r.strayNext = record.Seq + 1
			if old, err := v.believed(&record); err == nil {
				if r.strays == nil {
					r.strays = make(map[uint64]struct{})
				}
				r.strays[old.Receipt] = struct{}{}
			}
		}
		if _, ok := r.strays[found.Receipt]; ok {
			return nil
		}
		if tried && r.strayNext == before {
			return fmt.Errorf("%w: publish verdict: another one stands in the way and is not the newest", eventlog.ErrUnavailable)
		}
		_, err := v.publish(ctx, v.cfg.Witness.Strays, id, found, r.strayNext-1)
		if errors.Is(err, jetstream.ErrConflict) && ctx.Err() == nil {
			continue // another verifier was faster, with this one or with another
		}
		if err != nil {
			return err
		}
		v.metrics.countWitness(found)
		v.cfg.Log.ErrorContext(ctx, "not a match", slog.String("session", string(found.Session)), slog.String("verdict", found.String()))
		return nil
	}
}

// believed returns the verdict that a record holds. The error says why it does not count.
func (v *Verifier) believed(record *jetstream.Record) (audit.Verdict, error) {
	verdict, err := audit.DecodeVerdict(record.Payload)
	if err == nil {
		err = verdict.Verify()
	}
	if err == nil && verdict.Session != record.Session {
		err = fmt.Errorf("%w: it is about session %s", audit.ErrVerdict, verdict.Session)
	}
	if err == nil && !v.trusts(verdict.Verifier) {
		err = fmt.Errorf("verifier %s is not trusted", verdict.Verifier)
	}
	return verdict, err
}

// sign gives a verdict its time and its signature, once.
func (v *Verifier) sign(found *audit.Verdict) error {
	if len(found.Signature) > 0 {
		return nil
	}
	found.Time = max(v.cfg.Clock().UnixMilli(), 0)
	return v.cfg.Key.Sign(found)
}
