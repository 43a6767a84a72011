package audit

import (
	"cmp"
	"fmt"
	"slices"
)

// sortReceipts keeps the receipts that count.
func (w *walk) sortReceipts() {
	w.witnessed = len(w.check.Receipts) > 0 || len(w.check.Witnesses) > 0
	w.permitted, w.compared = make(map[uint64]*Call), make(map[uint64]struct{})
	w.placed = make(map[uint64]PlacedReceipt)
	for _, p := range w.check.Receipts {
		r := &p.Receipt
		if len(w.check.Witnesses) > 0 && !slices.Contains(w.check.Witnesses, r.Witness) {
			w.report.Unheard++
			continue
		}
		var err error
		if !w.check.Verified {
			err = r.Verify()
		}
		if err == nil && r.Session != w.check.Session {
			err = fmt.Errorf("receipt of call %s: it is about session %q", r.Call, r.Session)
		}
		if err != nil {
			w.log(max(r.Seq, 1), CouldNotCheck, RuleSignature, fmt.Sprintf("receipt at place %d: %v", p.Place, err))
			continue
		}
		w.placed[p.Place] = p
		if r.Kind == ReceiptRequest {
			w.receipts = append(w.receipts, p)
		}
	}
	slices.SortStableFunc(w.receipts, func(a, b PlacedReceipt) int { return cmp.Compare(a.Place, b.Place) })
	w.ofCall = make(map[uint64][]PlacedReceipt)
	for _, p := range w.receipts {
		w.ofCall[p.Receipt.Seq] = append(w.ofCall[p.Receipt.Seq], p)
	}
}

// permit notes the call that a request's verdict is about, unless it was copied from a parent.
func (w *walk) permit(v *Verdict) {
	if w.witnessed && v.Seq > w.checker.Copied() {
		w.permitted[v.Seq] = CallOf(v)
	}
}

// settle compares a call that has ended with its receipt.
func (w *walk) settle(call *Call) {
	if !w.witnessed || call == nil {
		return
	}
	if v := call.Wire(call.Receipt(w.ofCall[call.Seq()]), len(w.check.Witnesses) > 0); v != nil {
		w.compared[v.Seq] = struct{}{}
		w.add(*v)
	}
}

// strays looks for receipts that the log does not account for. Those of events that could not be read are left alone.
func (w *walk) strays() {
	first := make(map[uint64]uint64) // of each call the place of its first receipt
	for i := range w.receipts {
		p := &w.receipts[i]
		seq := p.Receipt.Seq
		if w.stopped && seq > w.report.Last {
			continue
		}
		call := w.permitted[seq]
		v := Stray(p, w.stopped || w.report.Last > 0, call, first[seq])
		_, compared := w.compared[seq]
		if v == nil && call != nil && first[seq] == 0 && !compared {
			v = Late(p, call)
		}
		if p.Receipt.Body.Bytes > 0 && first[seq] == 0 {
			first[seq] = p.Place
		}
		if v != nil && w.listed.Add(v.Result, v.Rule) {
			w.add(*v)
		}
	}
}
