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
	*Verdict // one of LogCheck.Prior

	held   bool      // the log holds what it says was there
	gone   bool      // it does not, and that was said, as the rule "signed"
	stored events.ID // when held: the ID that the event's message has, empty when that is no ULID
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
		s := &signedVerdict{Verdict: p}
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

// sayingOf returns what the verdict says. That the first receipt of a call differs from it is said once, whether that was found at
// the call or at the receipt.
func sayingOf(v *Verdict) saying {
	s := saying{subjectOf(v), v.Result, v.Rule}
	if v.Kind == KindStray && v.Rule == RuleWire {
		s.subject = subject{kind: KindWire, seq: v.Seq}
	}
	return s
}

// comparison holds what verifiers have signed against what the check found itself.
type comparison struct {
	walk   *walk
	own    map[subject]*Verdict // the first one about each
	said   map[saying]bool      // true: by the check; false: taken over
	broken uint64               // the event that breaks the log, 0: none does
	first  map[seen]uint64      // the place of the first receipt of each call by each witness
}

// seen is a call that a witness has seen.
type seen struct {
	seq     uint64
	witness string
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
	c.first = make(map[seen]uint64)
	for _, p := range slices.Backward(w.receipts) {
		request, ok := c.own[subject{kind: KindRequest, seq: p.Receipt.Seq}]
		if ok && CallOf(request).Receipt([]PlacedReceipt{p}) != nil {
			c.first[seen{p.Receipt.Seq, p.Receipt.Witness}] = p.Place
		}
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
	if p.Kind == KindRequest {
		if own, ok := c.own[subjectOf(p.Verdict)]; ok {
			return c.request(p, own)
		}
	}
	if why := c.contradiction(p); why != "" {
		c.contradicts(p, "%s", why)
		if p.Kind == KindLog || p.Kind == KindStray {
			c.takeOver(p.Verdict)
		}
		return false
	}
	return c.takeOver(p.Verdict) && c.holds(p)
}

// known reports whether it is known what stands at the verdict's event: the log was read, is whole, and is what was signed.
func (c *comparison) known(p *signedVerdict) bool {
	return p.Seq <= c.walk.report.Last && (c.broken == 0 || p.Seq < c.broken) && !p.gone
}

// holds reports whether log and receipts hold what the verdict is about. It is asked about one that nothing contradicts.
func (c *comparison) holds(p *signedVerdict) bool {
	own, ok := c.own[subjectOf(p.Verdict)]
	if p.Kind == KindWire && ok && own.Result != p.Result {
		return false
	}
	if _, counts := c.walk.placed[p.Receipt]; p.Receipt != 0 && c.walk.witnessed && !counts {
		return false
	}
	return p.held || ok && p.Result == BrokenChain && p.Chain == own.Chain
}

// contradiction returns what of a verdict is not so, empty when nothing is known against it. Of a request it is asked when the
// check found none there.
func (c *comparison) contradiction(p *signedVerdict) string {
	if why := incoherent(p.Verdict); why != "" {
		return why
	}
	if c.known(p) && p.held && p.Event != p.stored {
		return fmt.Sprintf("its event is %q, and the message has the ID %q", p.Event, p.stored)
	}
	switch p.Kind {
	case KindRequest:
		if c.known(p) {
			return "there is no request"
		}
	case KindHead:
		opaque := c.walk.checker.withheld.opaque // no head itself; behind it the check says nothing of heads
		if _, ok := c.own[subjectOf(p.Verdict)]; !ok && c.known(p) && (opaque == 0 || p.Seq <= opaque) {
			return "no turn and no session ends there"
		}
	case KindWire:
		return c.wire(p)
	case KindStray:
		return c.stray(p)
	case KindLog:
	}
	return ""
}

// incoherent returns what of a verdict does not fit together, whatever the log holds, empty when all of it does. What DecodeVerdict
// refuses is not looked at again.
func incoherent(v *Verdict) string {
	none := events.BodyDigest{}
	request, matches := v.Kind == KindRequest, v.Result == Match
	switch {
	case v.Result == CouldNotCheck:
		return "nobody signs that something could not be checked"
	case matches && v.Chain == events.Hash{}:
		return "it names no payload"
	case v.Kind == KindWire && v.Rule == RuleWire && v.Receipt == 0:
		return "it names no receipt of the body that it is about"
	case request && passing(v.Result) && (v.Rebuilt != none || v.Rule != ""):
		return "it names a rebuilt body or a rule, and nothing was compared"
	case request && matches && v.Rebuilt != v.Recorded, v.Kind == KindWire && matches && !wired(v):
		return "the bodies that it names differ"
	}
	return ""
}

// wired reports whether the body that passed the witness is the recorded one, and the rebuilt one when that is named.
func wired(v *Verdict) bool {
	return v.Wire == v.Recorded && (v.Rebuilt == events.BodyDigest{} || v.Wire == v.Rebuilt)
}

// readable returns the check's own verdict on the request of that event, nil where it is not known what stands there.
func (c *comparison) readable(p *signedVerdict) *Verdict {
	own, ok := c.own[subject{kind: KindRequest, seq: p.Seq}]
	if !ok || !p.held || disordered(own) {
		return nil
	}
	return own
}

// disordered reports whether the check's verdict is on a request of a log in disorder: what was signed says nothing more of that.
func disordered(own *Verdict) bool { return own.Result == BrokenChain || own.Rule == RuleEarlier }

// wire returns what of a verdict on a call is not what the request and the receipt say.
func (c *comparison) wire(p *signedVerdict) string {
	if _, ok := c.own[subject{kind: KindRequest, seq: p.Seq}]; !ok && c.known(p) && p.Result == Match {
		return "there is no request"
	}
	request := c.readable(p)
	if request != nil {
		switch {
		case p.Turn != request.Turn || p.Step != request.Step || p.Attempt != request.Attempt:
			return "its turn, step or attempt is not that of the request"
		case p.Recorded != request.Recorded:
			return "it names another recorded body than the log: " + p.Recorded.SHA256.String()
		case differ(p.Rebuilt, request.Rebuilt):
			return "it names another rebuilt body than the log gives: " + p.Rebuilt.SHA256.String()
		case p.Rule == RuleWire && wired(p.Verdict):
			return "the bodies that it names do not differ"
		}
	}
	if why := c.receipt(p); why != "" {
		return why
	}
	if r, ok := c.walk.placed[p.Receipt]; ok && request != nil && c.first[seen{p.Seq, r.Receipt.Witness}] != p.Receipt {
		return fmt.Sprintf("the receipt at place %d is not the first of the call", p.Receipt)
	}
	if own, ok := c.own[subjectOf(p.Verdict)]; ok && own.Receipt == p.Receipt && own.Result != p.Result && (p.Rebuilt != events.BodyDigest{} || own.Wire != own.Recorded) {
		return fmt.Sprintf("log and receipts say %s", own.Result)
	}
	return ""
}

// stray returns what of a verdict on a receipt is not what the request and the receipt say.
func (c *comparison) stray(p *signedVerdict) string {
	permitted := p.Rule == RuleRepeated || p.Rule == RuleWire
	if _, ok := c.own[subject{kind: KindRequest, seq: p.Seq}]; !ok && c.known(p) && permitted {
		return "there is no request"
	}
	if request := c.readable(p); request != nil && (permitted || p.Recorded != events.BodyDigest{}) && p.Recorded != request.Recorded {
		return "it names another recorded body than the log: " + p.Recorded.SHA256.String()
	}
	if !permitted && p.Recorded != (events.BodyDigest{}) {
		return "it names a recorded body of a call that nothing permits"
	}
	return c.receipt(p)
}

// receipt returns what of a verdict on a call, or on a receipt, is not what the receipt at its place says.
func (c *comparison) receipt(p *signedVerdict) string {
	r, ok := c.walk.placed[p.Receipt]
	switch {
	case !ok:
		return "" // not at hand, or of no witness whose receipts count
	case r.Receipt.Kind != ReceiptRequest || max(r.Receipt.Seq, 1) != p.Seq:
		return fmt.Sprintf("the receipt at place %d is not of a request for it", p.Receipt)
	case r.Receipt.Body != p.Wire:
		return fmt.Sprintf("the receipt at place %d is of another body than it names: %s", p.Receipt, r.Receipt.Body.SHA256)
	}
	return ""
}

// request compares a verdict on a request with the check's own.
func (c *comparison) request(p *signedVerdict, own *Verdict) bool {
	loose := incoherent(p.Verdict)
	switch {
	case p.Result == Match && p.Chain == events.Hash{}, p.Result == CouldNotCheck:
		return c.contradicts(p, "%s", loose)
	case p.gone: // the rule "signed" has it
		return false
	case p.Chain != own.Chain: // it is about a payload that is not there any more, or names none
		c.takeOver(p.Verdict)
	case !disordered(own) && !sameRequest(p.Verdict, own):
		return c.contradicts(p, "its event, turn, step, attempt or codec is not that of the request")
	case !disordered(own) && p.Recorded != own.Recorded, differ(p.Recorded, own.Recorded):
		return c.contradicts(p, "it names another recorded body than the log: %s", p.Recorded.SHA256)
	case differ(p.Rebuilt, own.Rebuilt):
		return c.contradicts(p, "it names another rebuilt body than the log gives: %s", p.Rebuilt.SHA256)
	case loose != "":
		return c.contradicts(p, "%s", loose)
	case disordered(own) && (p.Result != own.Result || p.Rule != own.Rule):
		c.takeOver(p.Verdict)
	case p.Result == own.Result && p.Rebuilt != own.Rebuilt:
		return c.contradicts(p, "it names no rebuilt body")
	case p.Result == own.Result && p.Rule != own.Rule:
		return c.contradicts(p, "the rule is %q", own.Rule)
	case p.Located && p.Offset > min(own.Recorded.Bytes, own.Rebuilt.Bytes):
		return c.contradicts(p, "its offset is behind the end of a body")
	case p.Result == own.Result:
		return p.held || p.Result == BrokenChain
	case !passing(p.Result) && !passing(own.Result):
		return c.contradicts(p, "the log says %s", own.Result)
	case own.Result == CouldNotCheck: // what the verifier found stands
		return c.takeOver(p.Verdict) && p.held
	case passing(own.Result): // likewise: this does not take its place
		c.takeOver(p.Verdict)
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
	if !c.walk.listed.Add(p.Result, RuleVerdict) { // there may be as many rules as findings
		return false
	}
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
