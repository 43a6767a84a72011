package audit

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// The rules about what verifiers have signed.
const (
	RuleVerdict = "verdict" // a signed verdict says what the check finds
	RuleSilent  = "silent"  // every request before a signed verdict has one, and a trusted verifier has signed something
)

// signedVerdict is a verdict that counts: of a verifier that is trusted, with its signature, of this session.
type signedVerdict struct {
	Verdict

	held bool // the log holds what it says was there
	gone bool // it does not, and that was said, as the rule "signed"
}

// sortPrior keeps the verdicts that count.
func (w *walk) sortPrior() {
	silent := slices.Clone(w.check.Trusted)
	w.strangers, w.forged = make(map[uint64]struct{}), make(map[uint64]struct{})
	for i := range w.check.Prior {
		p := &w.check.Prior[i]
		if len(w.check.Trusted) > 0 && !slices.Contains(w.check.Trusted, p.Verifier) {
			w.report.Ignored++
			if p.Kind == KindRequest && p.Session == w.check.Session {
				w.strangers[p.Seq] = struct{}{}
			}
			continue
		}
		if !w.check.Verified {
			if err := p.Verify(); err != nil {
				w.log(max(p.Seq, 1), CouldNotCheck, RuleSignature, err.Error())
				if p.Kind == KindRequest && p.Session == w.check.Session {
					w.forged[p.Seq] = struct{}{}
				}
				continue
			}
		}
		if p.Session != w.check.Session {
			w.log(max(p.Seq, 1), CouldNotCheck, RuleSignature, fmt.Sprintf("the verdict is about session %s", p.Session))
			continue
		}
		if len(silent) > 0 {
			silent = slices.DeleteFunc(silent, func(key string) bool { return key == p.Verifier })
		}
		s := &signedVerdict{Verdict: *p}
		w.signed = append(w.signed, s)
		if p.Chain != (events.Hash{}) && p.Result != BrokenChain {
			w.prior = append(w.prior, s)
		}
	}
	w.report.Silent = silent
	slices.SortStableFunc(w.prior, func(a, b *signedVerdict) int { return cmp.Compare(a.Seq, b.Seq) })
}

// subject is what a verdict is about. Of a session there is one verdict on each request, head and call, and one on each stray
// receipt.
type subject struct {
	kind    Kind
	seq     uint64
	receipt uint64
}

func subjectOf(v *Verdict) subject {
	s := subject{kind: v.Kind, seq: v.Seq}
	if v.Kind == KindStray {
		s.receipt = v.Receipt
	}
	return s
}

// saying is what a verdict says of its subject.
type saying struct {
	subject
	result Result
	rule   string
}

func sayingOf(v *Verdict) saying { return saying{subjectOf(v), v.Result, v.Rule} }

// comparison holds what verifiers have signed against what the check found itself.
type comparison struct {
	walk   *walk
	own    map[subject]*Verdict // the first one about each
	said   map[saying]bool      // true: by the check; false: taken over
	broken uint64               // the event that breaks the log, 0: none does
}

// compareSigned compares what was signed with what was found, and takes over the findings that only verifiers could make.
func (w *walk) compareSigned() {
	found := len(w.report.Verdicts) // what comes behind is not the check's own
	c := &comparison{walk: w, own: make(map[subject]*Verdict), said: make(map[saying]bool)}
	if w.checker.broken != nil {
		c.broken = w.checker.broken.Seq
	}
	for i := range found {
		v := &w.report.Verdicts[i]
		if _, ok := c.own[subjectOf(v)]; !ok {
			c.own[subjectOf(v)] = v
		}
		c.said[sayingOf(v)] = true
	}
	for _, s := range w.signed {
		if c.agrees(s) {
			w.report.Confirmed++
		}
	}
	w.silences(found)
}

// agrees reports whether the check and the log agree with the verdict. What contradicts it, and what it has found and the check
// has not, is added to the report.
func (c *comparison) agrees(p *signedVerdict) bool {
	own, ok := c.own[subjectOf(&p.Verdict)]
	if p.Result == Match && p.Chain == (events.Hash{}) {
		return c.contradicts(p, "it names no payload")
	}
	held := p.held || ok && p.Result == BrokenChain && p.Chain == own.Chain
	// Whether something of the kind stands there is known where the log was read, is whole, and is what was signed.
	known := p.Seq <= c.walk.report.Last && (c.broken == 0 || p.Seq < c.broken) && !p.gone
	switch p.Kind {
	case KindRequest:
		if ok {
			return c.request(p, own) && held
		}
		if known {
			return c.contradicts(p, "there is no request")
		}
	case KindHead:
		opaque := c.walk.checker.withheld.opaque // no head itself; behind it the check says nothing of heads
		if !ok && known && (opaque == 0 || p.Seq <= opaque) {
			return c.contradicts(p, "no turn and no session ends there")
		}
	case KindWire:
		if _, request := c.own[subject{kind: KindRequest, seq: p.Seq}]; !request && known && p.Result == Match {
			return c.contradicts(p, "there is no request")
		}
		if ok && own.Receipt == p.Receipt && own.Result != p.Result {
			return c.contradicts(p, "log and receipts say %s", own.Result)
		}
		if ok && own.Result != p.Result {
			held = false
		}
	case KindLog, KindStray:
	}
	return c.takeOver(&p.Verdict) && held
}

// request compares a verdict on a request with the check's own.
func (c *comparison) request(p *signedVerdict, own *Verdict) bool {
	switch {
	case p.gone: // the rule "signed" has it
		return false
	case p.Chain != own.Chain: // it is about a payload that is not there any more, or names none
		return c.takeOver(&p.Verdict)
	case own.Result != BrokenChain && own.Rule != RuleEarlier && !sameRequest(&p.Verdict, own):
		return c.contradicts(p, "its event, turn, step, attempt or codec is not that of the request")
	case differ(p.Recorded, own.Recorded):
		return c.contradicts(p, "it names another recorded body than the log: %s", p.Recorded.SHA256)
	case differ(p.Rebuilt, own.Rebuilt):
		return c.contradicts(p, "it names another rebuilt body than the log gives: %s", p.Rebuilt.SHA256)
	case p.Result == Match && p.Rebuilt != p.Recorded:
		return c.contradicts(p, "the bodies that it names differ")
	case p.Result == own.Result:
		return true
	case own.Result == BrokenChain, own.Rule == RuleEarlier: // of a log in disorder, what was signed says nothing more
		c.takeOver(&p.Verdict)
	case !passing(p.Result) && !passing(own.Result):
		return c.contradicts(p, "the log says %s", own.Result)
	case own.Result == CouldNotCheck: // what the verifier found stands
		return c.takeOver(&p.Verdict)
	case passing(own.Result): // likewise: this does not take its place
		c.takeOver(&p.Verdict)
	}
	return false
}

// sameRequest reports whether two verdicts name the same request of one event, whose message is in order.
func sameRequest(a, b *Verdict) bool {
	return a.Event == b.Event && a.Turn == b.Turn && a.Step == b.Step && a.Attempt == b.Attempt && a.Codec == b.Codec
}

// differ reports whether two digests are there and are not the same.
func differ(a, b events.BodyDigest) bool {
	return a != (events.BodyDigest{}) && b != (events.BodyDigest{}) && a != b
}

// passing reports whether a result on a request may be another one later: objects are repaired or go missing, and a program may
// come to know a codec.
func passing(r Result) bool {
	switch r {
	case MissingObject, CorruptObject, UnknownCodec, CouldNotCheck:
		return true
	case Match, Mismatch, BrokenChain, InvalidLog:
	}
	return false
}

// contradicts adds that a verdict says what is not so. It returns false.
func (c *comparison) contradicts(p *signedVerdict, format string, args ...any) bool {
	c.walk.log(p.Seq, Mismatch, RuleVerdict, fmt.Sprintf("what %s has signed says %s %s: %s", p.Verifier, p.Kind, p.Result, fmt.Sprintf(format, args...)))
	return false
}

// takeOver takes over what a verifier has found, unless the check found it too: some things show only where the streams are. It
// returns whether there was nothing to take over. What was taken over counts among no requests and calls.
func (c *comparison) takeOver(p *Verdict) bool {
	if p.Result == Match || p.Result == CouldNotCheck {
		return true
	}
	if own, ok := c.said[sayingOf(p)]; ok {
		return own
	}
	c.said[sayingOf(p)] = false
	v := *p
	v.Time, v.Verifier, v.Signature = 0, "", nil
	v.Reason = clean(fmt.Sprintf("signed by %s: %s", p.Verifier, p.Reason), maxReason)
	c.walk.report.Verdicts = append(c.walk.report.Verdicts, v)
	return false
}

// silences looks for requests without a signed verdict, although there are verdicts on what comes behind them: verifiers sign in
// the order of the log, and sign one about every request. found is how many verdicts are the check's own.
func (w *walk) silences(found int) {
	if n := len(w.check.Trusted); n > 0 && len(w.report.Silent) == n {
		w.log(max(w.report.Last, 1), CouldNotCheck, RuleSilent, "no verifier that is trusted has signed anything about this session")
	}
	if w.check.PriorPartial || slices.ContainsFunc(w.signed, func(p *signedVerdict) bool { return p.gone }) { // another log has other requests
		return
	}
	signed := make(map[uint64]struct{})
	newest := uint64(0)
	for _, p := range w.signed {
		if p.Seq > w.report.Last {
			continue
		}
		switch p.Kind {
		case KindRequest:
			signed[p.Seq] = struct{}{}
			newest = max(newest, p.Seq)
		case KindHead:
			newest = max(newest, p.Seq)
		case KindLog, KindWire, KindStray: // of these some stand elsewhere
		}
	}
	for i := range found {
		v := &w.report.Verdicts[i]
		if _, ok := signed[v.Seq]; ok || v.Kind != KindRequest || v.Seq > newest || v.Result == BrokenChain {
			continue
		}
		if _, ok := w.forged[v.Seq]; ok { // that was said
			continue
		}
		if _, ok := w.strangers[v.Seq]; ok {
			w.log(v.Seq, CouldNotCheck, RuleSilent, "the verdicts on this request are of verifiers that are not trusted")
			continue
		}
		w.log(v.Seq, Mismatch, RuleSilent, fmt.Sprintf("no verdict on this request is signed, although one on event %d is", newest))
	}
}
