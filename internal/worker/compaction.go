package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// decide asks the policy whether, and how, history is to be made smaller. pending is an estimate of what enters next, in
// tokens.
func (l *loop) decide(ctx context.Context, reason events.CompactionReason, pending int64) (compact.Decision, error) {
	done := l.view.summaries
	if _, open := l.state.Compaction(); open { // the one that is decided about
		done--
	}
	policy := l.cfg.Compaction
	if l.noPrune {
		policy.PruneChars = -1
	}
	return compact.Decide(policy, &l.view.meter, compact.Situation{
		Reason: reason, Window: l.window(ctx), KeepFrom: l.view.prompt, Pending: pending,
		Done: done, Stalled: l.view.stalled, Pruned: l.view.pruned,
	}, compact.Pruner{
		Load: func(ref objects.Ref) (string, error) {
			data, err := objects.Get(ctx, l.cfg.Objects, ref)
			return string(data), err
		},
		Shorten: tools.Prune,
	})
}

// window returns the context window of the route that the next request goes to, in tokens, 0 when it is not known: that of
// the last request may have been another's.
func (l *loop) window(ctx context.Context) int64 {
	next := l.state.ConfigSeed(l.cfg.Defaults)
	last, _ := l.state.Context()
	if next.Provider == last.Provider && next.Model == last.Model && l.prepared {
		return last.ContextWindow
	}
	if adapter, _, ok := l.cfg.Routes.Lookup(next.Provider); ok {
		if prepared, err := adapter.Prepare(ctx, next); err == nil {
			return prepared.ContextWindow()
		}
	}
	return last.ContextWindow
}

// relieve makes history smaller before a step when the next request would nearly fill the context window. done reports
// that something was done about it; then it is asked again.
func (l *loop) relieve(ctx context.Context, batch []*input) (done bool, err error) {
	if l.cfg.NoPressure || l.refusal != nil {
		return false, nil
	}
	d, err := l.decide(ctx, events.CompactionPressure, batchTokens(batch))
	if err != nil {
		return false, l.refuse(err)
	}
	switch d.Kind {
	case compact.KindPrune:
		return true, l.prune(ctx, &d.Prunes[0])
	case compact.KindSummarise:
		return true, l.startCompaction(ctx, events.CompactionPressure, &d.Region, events.Claim{})
	case compact.KindImpossible:
		return false, l.refuse(windowError(d.Why))
	case compact.KindNone:
	}
	return false, nil
}

// batchTokens estimates what the inputs will take in a request.
func batchTokens(batch []*input) (n int64) {
	for _, in := range batch {
		n += compact.MessageTokens(&events.Message{Content: in.Content})
	}
	return n
}

func windowError(why error) error {
	return &provider.Error{Failure: events.Failure{Code: events.FailureContextWindow, Message: why.Error()}, Err: why}
}

// overflow deals with a request that the provider refused as too long: history is made smaller and the request made
// again in the same step, or the step ends.
func (l *loop) overflow(ctx context.Context, turn, step int64) error {
	if l.refusal != nil {
		return l.endStep(ctx, turn, step)
	}
	if l.view.compacted {
		return l.call(ctx, turn, step)
	}
	d, err := l.decide(ctx, events.CompactionOverflow, 0)
	if err != nil {
		return l.refuse(err)
	}
	switch {
	case d.Kind == compact.KindPrune:
		return l.prune(ctx, &d.Prunes[0])
	case d.Kind == compact.KindSummarise:
		return l.startCompaction(ctx, events.CompactionOverflow, &d.Region, events.Claim{})
	case d.Kind == compact.KindNone && l.view.pruned:
		return l.call(ctx, turn, step)
	}
	if d.Why == nil {
		return l.endStep(ctx, turn, step)
	}
	_, _, failure := l.state.Outcome()
	return l.refuse(windowError(fmt.Errorf("%s; history cannot be made smaller: %w", failure.Message, d.Why)))
}

// prune shortens one tool result under its call id.
func (l *loop) prune(ctx context.Context, p *compact.Pruned) error {
	result, ok := l.state.ToolResult(p.Seq)
	if !ok {
		return fmt.Errorf("session %s: event %d is no tool result", l.id, p.Seq)
	}
	content := slices.Clone(p.Content)
	for i := range content {
		var err error
		if content[i], err = l.textBlock(ctx, content[i], l.cfg.InlineMax); errors.Is(err, objects.ErrFull) {
			l.log.WarnContext(ctx, "a result is not shortened", slog.Uint64("result", p.Seq), slog.Any("error", err))
			l.noPrune = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	err := l.put(ctx, &events.CompactionPrune{
		Region: events.Region{Start: p.Seq, End: p.Seq}, Shadowed: []uint64{p.Seq}, ShadowedTokens: p.Freed,
	})
	if err != nil {
		return err
	}
	result.Message.Content[0].Content, result.Contexts, result.Meta = content, nil, ""
	return l.put(ctx, &result, eventlog.WithSurface(events.ReplaceOp(p.Seq, p.Seq)), eventlog.WithSources(p.Seq))
}

// startCompaction opens a compaction; a nil region is decided when the summary is asked for.
func (l *loop) startCompaction(ctx context.Context, reason events.CompactionReason, region *compact.Region, claim events.Claim) error {
	l.region = region
	return l.put(ctx, &events.CompactionStart{CompactionID: string(l.cfg.NewID()), Turn: l.openTurn(), Reason: reason, Claim: claim})
}

// openTurn and openStep return what a call outside of the loop's own belongs to, 0 where nothing is open.
func (l *loop) openTurn() int64 {
	if turn, open := l.state.Turn(); open {
		return turn
	}
	return 0
}

func (l *loop) openStep() int64 {
	if step, open := l.state.Step(); open {
		return step
	}
	return 0
}

// compact does the next thing in an open compaction.
func (l *loop) compact(ctx context.Context, c *fold.Compaction) error {
	_, cancelled := l.state.Cancelled()
	switch {
	case c.Replaced:
		return l.endCompaction(ctx, c, events.CompactionCompleted, "")
	case cancelled || l.view.stopped:
		return l.endCompaction(ctx, c, events.CompactionInterrupted, "cancelled")
	case c.SummarySeq > 0:
		return l.placeSummary(ctx, c)
	}
	if retry, at, scheduled := l.state.PendingRetry(); scheduled {
		return l.waitRetry(ctx, retry, at)
	}
	if f := c.Failure; f.Code != "" && !l.view.retrying {
		if !l.retries(ctx, f, c.Attempt) {
			return l.endCompaction(ctx, c, events.CompactionFailed, fmt.Sprintf("%s: %s", f.Code, f.Message))
		}
		if f.Code != events.FailureInterrupted {
			return l.scheduleRetry(ctx, l.openTurn(), l.openStep(), c.Attempt, f)
		}
	}
	err := l.summarise(ctx, c)
	if errors.Is(err, errCancelled) {
		return nil
	}
	if f, final := refusal(err); final {
		return l.endCompaction(ctx, c, events.CompactionFailed, fmt.Sprintf("%s: %s", f.Code, f.Message))
	}
	return err
}

func (l *loop) endCompaction(ctx context.Context, c *fold.Compaction, outcome events.CompactionOutcome, why string) error {
	if outcome != events.CompactionCompleted {
		l.log.WarnContext(ctx, "compaction without effect", slog.String("outcome", string(outcome)), slog.String("reason", why))
	}
	l.region = nil
	return l.put(ctx, &events.CompactionEnd{CompactionID: c.Start.CompactionID, Turn: c.Start.Turn, Outcome: outcome, Error: clipText(why)})
}

// summarise asks the model for the summary of the compaction's region.
func (l *loop) summarise(ctx context.Context, c *fold.Compaction) error {
	if l.region == nil {
		why, err := l.chooseRegion(ctx, c)
		if err != nil {
			return err
		}
		if why != "" {
			return l.endCompaction(ctx, c, events.CompactionNoProgress, why)
		}
	}
	turn, step := l.openTurn(), l.openStep()
	adapter, own, err := l.header(ctx, turn, step)
	if err != nil {
		return err
	}
	prepared, err := l.prepareSummary(ctx, adapter, own)
	if err != nil {
		return err
	}
	if err := l.showImages(ctx, prepared); err != nil {
		return err
	}
	_, header := l.state.Header()
	stream := &events.LLMStream{
		Turn: turn, Step: step, Attempt: c.Attempt + 1, Purpose: events.PurposeCompaction, Header: header, Surface: l.state.Position(),
		Auxiliary: &events.Auxiliary{Config: prepared.Config(), Region: l.region.Events, Directive: compact.DirectiveBlocks()},
		Codec:     prepared.Codec(), Objects: l.state.NewObjects(),
	}
	req, err := l.state.RequestOf(stream)
	if err != nil {
		return err
	}
	builder, err := codec.New(stream.Codec, codec.Options{}) // the conversation's own builder keeps its prefix
	if err != nil {
		return err
	}
	body, err := replay.Build(ctx, builder, &req, l.cfg.Objects, stream.Objects)
	if err != nil {
		return err
	}
	stream.Body = body.Digest()
	return l.dispatch(ctx, prepared, body, stream)
}

// chooseRegion decides what the open compaction summarises: what it was begun for when a call for it was made already.
// why is not empty when there is nothing.
func (l *loop) chooseRegion(ctx context.Context, c *fold.Compaction) (why string, err error) {
	if l.view.region != (events.Region{}) {
		r, err := l.surfaceRegion(l.view.region)
		l.region = &r
		return "", err
	}
	var pending int64
	if _, stepOpen := l.state.Step(); c.Start.Turn > 0 && !stepOpen {
		step, _ := l.state.Step()
		pending = batchTokens(l.batch(step == 0, l.seen))
	}
	d, err := l.decide(ctx, c.Start.Reason, pending)
	if err != nil {
		return "", err
	}
	if d.Kind == compact.KindSummarise {
		l.region = &d.Region
		return "", nil
	}
	why = "there is nothing to summarise"
	if d.Why != nil {
		why = d.Why.Error()
	}
	return why, nil
}

// prepareSummary binds the configuration of a call for a summary to the adapter of the conversation's own calls: with the
// least reasoning, which would count as part of the answer, and as many tokens as an answer has room for.
func (l *loop) prepareSummary(ctx context.Context, adapter provider.Adapter, own *provider.Prepared) (*provider.Prepared, error) {
	config := own.Config()
	most := config.MaxTokens
	if effort := own.LeastEffort(); effort != "" {
		config.ReasoningEffort = effort
	}
	config.MaxTokens = 0
	open, err := adapter.Prepare(ctx, config)
	if err != nil {
		return nil, err
	}
	config.MaxTokens = max(l.cfg.SummaryMax, l.cfg.Compaction.Reserved(own.ContextWindow()))
	for _, bound := range [...]int64{most, open.MaxTokens()} {
		if bound > 0 {
			config.MaxTokens = min(config.MaxTokens, bound)
		}
	}
	return adapter.Prepare(ctx, config)
}

// summary ends the compaction's call, whose answer is complete, with the summary that it gave.
func (l *loop) summary(ctx context.Context, stream *events.LLMStream, a *fold.Answer, chunks []uint64) error {
	compaction, _ := l.state.Compaction()
	texts := a.Texts()
	_, err := compact.Frame(texts)
	switch {
	case a.Finish.Kind != events.FinishStop:
		return l.fail(ctx, events.Failure{Code: events.FailureMalformed, Message: fmt.Sprintf("the summary ended with %q", a.Finish.Kind)})
	case err != nil:
		return l.fail(ctx, events.Failure{Code: events.FailureEmpty, Message: err.Error()})
	}
	region, err := l.surfaceRegion(stream.Auxiliary.Region)
	if err != nil {
		return err
	}
	config := &stream.Auxiliary.Config
	err = l.put(ctx, &events.CompactionSummary{
		CompactionID: compaction.Start.CompactionID, Region: region.Events, Shadowed: l.state.Nodes()[region.Lo:region.Hi],
		ShadowedTokens: region.Tokens, Summary: texts, Provider: config.Provider, Model: config.Model, MaxTokens: config.MaxTokens,
		Usage: a.Usage, UsageReported: a.UsageReported,
	}, eventlog.WithSources(chunks...))
	if errors.Is(err, eventlog.ErrTooLarge) {
		return l.fail(ctx, events.Failure{Code: events.FailureMalformed, Message: "the summary does not fit into the log: " + err.Error()})
	}
	return err
}

// surfaceRegion returns the region with its positions and its worth.
func (l *loop) surfaceRegion(r events.Region) (compact.Region, error) {
	nodes := l.state.Nodes()
	lo, hi := slices.Index(nodes, r.Start), slices.Index(nodes, r.End)
	if lo < 0 || hi < lo {
		return compact.Region{}, fmt.Errorf("session %s: %d..%d is no run of surface nodes", l.id, r.Start, r.End)
	}
	out := compact.Region{Lo: lo, Hi: hi + 1, Events: r}
	for _, t := range l.view.meter.Tokens()[lo : hi+1] {
		out.Tokens += t
	}
	return out, nil
}

// placeSummary puts the summary in the place of what it summarises, unless that would make nothing smaller.
func (l *loop) placeSummary(ctx context.Context, c *fold.Compaction) error {
	region, err := l.surfaceRegion(c.Summary.Region)
	if err != nil {
		return err
	}
	content, err := compact.Frame(c.Summary.Summary)
	if err != nil {
		return l.endCompaction(ctx, c, events.CompactionFailed, err.Error())
	}
	if _, _, err := compact.Check(&l.view.meter, region, content); err != nil {
		return l.endCompaction(ctx, c, events.CompactionNoProgress, err.Error())
	}
	m := events.Message{
		ID: string(l.cfg.NewID()), Role: events.RoleUser, Content: content,
		Source: events.Source{Kind: events.SourcePlugin, Plugin: compact.Plugin, CompactionID: c.Start.CompactionID},
	}
	sources := append([]uint64{c.StartSeq, c.SummarySeq}, c.Summary.Shadowed...)
	err = l.put(ctx, &events.UserMessage{Message: m},
		eventlog.WithSurface(events.ReplaceOp(region.Events.Start, region.Events.End)), eventlog.WithSources(sources...))
	if errors.Is(err, eventlog.ErrTooLarge) {
		return l.endCompaction(ctx, c, events.CompactionFailed, "the summary does not fit into the log: "+err.Error())
	}
	return err
}
