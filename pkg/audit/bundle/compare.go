package bundle

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// subject is what a verdict is about.
type subject struct {
	kind    audit.Kind
	seq     uint64
	receipt uint64
}

// subjectOf names what v is about. Of a session there is one verdict on each request, head and call, and one on each stray
// receipt.
func subjectOf(v *audit.Verdict) subject {
	s := subject{kind: v.Kind, seq: v.Seq}
	if v.Kind == audit.KindStray {
		s.receipt = v.Receipt
	}
	return s
}

// compare holds what verifiers have signed against what the check of the log found.
func (c *check) compare(verdicts []placed) {
	found := make(map[subject][]*audit.Verdict)
	for i := range c.report.Verdicts {
		v := &c.report.Verdicts[i]
		found[subjectOf(v)] = append(found[subjectOf(v)], v)
	}
	opaque := uint64(0) // behind it the check says nothing of heads
	if i := slices.IndexFunc(c.report.Verdicts, func(v audit.Verdict) bool { return v.Kind == audit.KindLog && v.Rule == audit.RuleWithheld }); i >= 0 {
		opaque = c.report.Verdicts[i].Seq
	}
	for i := range verdicts {
		p := verdicts[i].verdict
		if p == nil || !verdicts[i].counts {
			continue
		}
		own := found[subjectOf(p)]
		switch p.Kind {
		case audit.KindRequest:
			c.compareRequest(verdicts[i].place, p, own)
		case audit.KindHead:
			if len(own) == 0 && p.Seq <= c.report.Last && (opaque == 0 || p.Seq < opaque) && !c.broken(p.Seq) {
				c.contradicts(verdicts[i].place, p, "no turn and no session ends there")
			}
		case audit.KindWire:
			c.compareWire(verdicts[i].place, p, own)
		case audit.KindLog, audit.KindStray:
			c.repeat(verdicts[i].place, p, own)
		}
	}
}

// broken reports whether the check found the log broken at the event or before it.
func (c *check) broken(seq uint64) bool {
	return slices.ContainsFunc(c.report.Verdicts, func(v audit.Verdict) bool {
		return v.Seq <= seq && isBreak(v.Result) && v.Rule != audit.RuleLineage && v.Rule != audit.RuleSigned
	})
}

func isBreak(r audit.Result) bool { return r == audit.BrokenChain || r == audit.InvalidLog }

func (c *check) contradicts(place uint64, p *audit.Verdict, format string, args ...any) {
	c.add(p.Seq, audit.Mismatch, RuleVerdict, "the verdict at place %d of VERDICTS, signed by %s, says %s %s: %s",
		place, p.Verifier, p.Kind, p.Result, fmt.Sprintf(format, args...))
}

// compareRequest compares a signed verdict on a request with the check's own.
func (c *check) compareRequest(place uint64, p *audit.Verdict, own []*audit.Verdict) {
	if len(own) == 0 {
		if p.Seq <= c.report.Last {
			c.contradicts(place, p, "there is no request")
		}
		return
	}
	v := own[0]
	empty := events.BodyDigest{}
	switch {
	case p.Chain != v.Chain:
		// the rule "signed" has it
	case p.Recorded != empty && v.Recorded != empty && p.Recorded != v.Recorded:
		c.contradicts(place, p, "it names another recorded body than the log: %s", p.Recorded.SHA256)
	case p.Rebuilt != empty && v.Rebuilt != empty && p.Rebuilt != v.Rebuilt:
		c.contradicts(place, p, "it names another rebuilt body than the log gives: %s", p.Rebuilt.SHA256)
	case p.Result == audit.Match && p.Rebuilt != p.Recorded:
		c.contradicts(place, p, "the bodies that it names differ")
	case differs(p.Result, v.Result):
		c.contradicts(place, p, "the log says %s", v.Result)
	}
}

// differs reports whether two results on a request contradict each other. Objects may be repaired or go missing, and a program
// may come to know a codec; what is withheld is not known.
func differs(signed, own audit.Result) bool {
	passing := func(r audit.Result) bool {
		switch r {
		case audit.MissingObject, audit.CorruptObject, audit.UnknownCodec, audit.CouldNotCheck:
			return true
		case audit.Match, audit.Mismatch, audit.BrokenChain, audit.InvalidLog:
		}
		return false
	}
	return signed != own && !passing(signed) && !passing(own)
}

// compareWire compares a signed verdict on a call with the check's own. The bundle may lack the receipt.
func (c *check) compareWire(place uint64, p *audit.Verdict, own []*audit.Verdict) {
	if len(own) > 0 && own[0].Receipt == p.Receipt && own[0].Result != p.Result {
		c.contradicts(place, p, "log and receipts say %s", own[0].Result)
		return
	}
	if len(own) == 0 && p.Result == audit.Match && p.Receipt != 0 {
		c.add(p.Seq, audit.CouldNotCheck, RuleReceipt, "the verdict at place %d of VERDICTS names the receipt at place %d of WITNESS, which the bundle does not hold",
			place, p.Receipt)
		return
	}
	c.repeat(place, p, own)
}

// repeat takes over what a verifier has found, unless the check found it too: some things show only where the streams are.
func (c *check) repeat(place uint64, p *audit.Verdict, own []*audit.Verdict) {
	if p.Result == audit.Match || slices.ContainsFunc(own, func(v *audit.Verdict) bool { return v.Result == p.Result && v.Rule == p.Rule }) {
		return
	}
	v := *p
	v.Time, v.Verifier, v.Signature = 0, "", nil
	v.Reason = audit.Reason(fmt.Sprintf("signed at place %d of VERDICTS by %s: %s", place, p.Verifier, p.Reason))
	c.found = append(c.found, v)
}

// silent looks for requests without a signed verdict, although there are verdicts on what comes behind them: verifiers sign in
// the order of the log, and sign one about every request.
func (c *check) silent(verdicts []placed) {
	signed := make(map[uint64]struct{})
	newest := uint64(0)
	for i := range verdicts {
		p := verdicts[i].verdict
		if p == nil {
			continue
		}
		switch p.Kind {
		case audit.KindRequest:
			signed[p.Seq] = struct{}{}
			newest = max(newest, p.Seq)
		case audit.KindHead:
			newest = max(newest, p.Seq)
		case audit.KindLog, audit.KindWire, audit.KindStray: // of these some stand elsewhere
		}
	}
	for i := range c.report.Verdicts {
		v := &c.report.Verdicts[i]
		if v.Kind != audit.KindRequest || v.Seq > newest {
			continue
		}
		if _, ok := signed[v.Seq]; !ok {
			c.add(v.Seq, audit.Mismatch, RuleSilent, "no verdict on this request is signed, although one on event %d is", newest)
		}
	}
}
