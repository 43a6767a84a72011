package verify

import (
	"context"
	"fmt"

	"github.com/refold-dev/refold/pkg/audit"
)

// said is what a verdict says, for a comparison with another one.
type said struct {
	seq    uint64
	result audit.Result
	rule   string
}

// notSaid returns the first finding of a cold check that no verdict on the session says, nil when there is none: what was
// found before is nothing that only a cold check finds, nor is what an earlier one has found.
func (h *handler) notSaid(ctx context.Context, verdicts []audit.Verdict) (*audit.Verdict, error) {
	known, reasons := make(map[said]struct{}), make(map[string]struct{})
	for v, err := range h.verifier.verdicts(ctx, h.session) {
		if err != nil {
			return nil, fmt.Errorf("cold check: %w", err)
		}
		known[said{v.Seq, v.Result, v.Rule}] = struct{}{}
		if v.Rule == audit.RuleCold {
			reasons[v.Reason] = struct{}{}
		}
	}
	for i := range verdicts {
		v := &verdicts[i]
		_, found := known[said{v.Seq, v.Result, v.Rule}]
		_, again := reasons[audit.Reason(v.String())]
		if v.Result != audit.Match && v.Result != audit.CouldNotCheck && !found && !again {
			return v, nil
		}
	}
	return nil, nil
}
