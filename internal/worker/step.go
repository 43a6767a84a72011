package worker

import (
	"context"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// inStep does the next thing in an open step that has no answer.
func (l *loop) inStep(ctx context.Context, turn, step int64) error {
	if _, cancelled := l.state.Cancelled(); cancelled {
		return l.endStep(ctx, turn, step)
	}
	if l.state.Attempt() == 0 && !l.entered {
		done, err := l.enterNext(ctx, turn, step)
		if done || err != nil {
			return err
		}
		l.entered = true
	}
	return l.nextCall(ctx, turn, step)
}

// enterNext appends the next message that belongs to the step's beginning: the claimed inputs, what tools' extensions
// owe, what was added before the step, and the contexts that have changed. done reports whether there was one.
func (l *loop) enterNext(ctx context.Context, turn, step int64) (done bool, err error) {
	if l.upTo == 0 { // the worker died that had decided
		l.upTo = l.seen
	}
	batch := l.batch(step == 1, l.upTo)
	if !l.asked && l.refusal == nil {
		return true, l.askAgain(ctx, turn, step, batch)
	}
	if len(batch) > 0 {
		return true, l.enter(ctx, batch[0])
	}
	if owed := l.state.Owed(); len(owed) > 0 {
		o := owed[0]
		return true, l.say(ctx, events.SourcePlugin, o.Plugin, []events.Block{events.Text(o.Text)}, eventlog.WithSources(o.Result))
	}
	if l.refusal != nil { // nothing more is to be said: there is no call
		return false, nil
	}
	if len(l.added) > 0 {
		a := l.added[0]
		blocks := make([]events.Block, len(a.texts))
		for i, t := range a.texts {
			if blocks[i], err = l.textBlock(ctx, events.Text(t), l.cfg.InlineMax); err != nil {
				return true, l.refuse(err)
			}
		}
		l.added = l.added[1:]
		if l.view.said(a.plugin, blocks) { // the worker before has seen to it
			return true, nil
		}
		if err := l.say(ctx, events.SourcePlugin, a.plugin, blocks); err != nil {
			return true, l.refuse(err)
		}
		return true, nil
	}
	return l.enterContext(ctx, turn, step)
}

// askAgain asks the extensions about an open step, because the worker died that had asked. Inputs that they have not let
// in yet enter only now, or not at all.
func (l *loop) askAgain(ctx context.Context, turn, step int64, batch []*input) error {
	steers := func(in *input) bool { return in.Kind == events.InputSteer }
	if step > 1 && l.view.complete && !l.view.steered && !slices.ContainsFunc(batch, steers) {
		if _, err := l.turnStopping(ctx, turn, step-1); err != nil {
			return l.refuse(err)
		}
	}
	cause, err := l.preStep(ctx, turn, step, batch)
	if err != nil {
		return l.refuse(err)
	}
	l.asked = true
	if cause == "" {
		return nil
	}
	for _, in := range batch {
		if err := l.drop(ctx, in, cause); err != nil {
			return err
		}
	}
	f := clipFailure(events.Failure{Code: events.FailureExtension, Message: cause})
	l.refusal, l.entered = &f, true // nobody was asked about the prompt behind the dropped one
	return nil
}

// enter claims an input that is a message: the claim is the message. One whose content cannot be kept is dropped, and
// the turn ends.
func (l *loop) enter(ctx context.Context, in *input) error {
	content, err := l.keep(ctx, in)
	var delivery events.Delivery
	switch in.Kind {
	case events.InputSteer:
		delivery = events.DeliverySteer
	case events.InputInject:
		delivery = events.DeliveryInject
	default: // a prompt
	}
	m := events.Message{ID: string(in.ID), Role: events.RoleUser, Content: content, Source: events.Source{Kind: events.SourceUser}}
	if err == nil {
		err = l.put(ctx, &events.UserMessage{Message: m, InboxSeq: in.seq, Delivery: delivery}, appended())
	}
	if f, final := refusal(err); final { // the model is not to go on without what it should have read
		if err := l.dropUnkept(ctx, in, f); err != nil {
			return err
		}
		l.refusal, l.entered = &f, true // what else waits does not go down with this turn
		return nil
	}
	if err != nil {
		return err
	}
	l.taken(in)
	return nil
}

// keep returns an input's content, after it has put into the object store what belongs there.
func (l *loop) keep(ctx context.Context, in *input) ([]events.Block, error) {
	content := make([]events.Block, len(in.Content))
	for i, b := range in.Content {
		var err error
		if content[i], err = l.textBlock(ctx, b, in.inline); err != nil {
			return nil, err
		}
	}
	for _, data := range in.Attachments {
		if err := l.keepImage(ctx, content, data); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// say appends a message that no input asked for.
func (l *loop) say(ctx context.Context, kind events.SourceKind, plugin string, content []events.Block, opts ...eventlog.AppendOption) error {
	m := events.Message{
		ID: string(l.cfg.NewID()), Role: events.RoleUser, Content: content, Source: events.Source{Kind: kind, Plugin: plugin},
	}
	return l.put(ctx, &events.UserMessage{Message: m}, append(opts, appended())...)
}

// enterContext appends the next context section whose text is not the one that the model still sees. Each section is
// asked once in a step, so that one that never says the same twice does not go on for ever.
func (l *loop) enterContext(ctx context.Context, turn, step int64) (done bool, err error) {
	at := l.point(turn, step)
	for l.section < len(l.cfg.Extensions.Contexts) {
		section := l.cfg.Extensions.Contexts[l.section]
		l.section++
		text, err := ask(ctx, l, func(ctx context.Context) (string, error) { return section.Text(ctx, at) })
		if err != nil {
			return true, l.refuse(extensionError(section, err))
		}
		retained, shown := l.state.RetainedContext(section.Name())
		switch {
		case text == "" && !shown:
			continue
		case text == "": // a provider may refuse an empty message, and no model would understand it
			text = fmt.Sprintf("[%s: no longer applies]", section.Name())
		}
		block, err := l.textBlock(ctx, events.Text(events.TextFromBytes([]byte(text))), l.cfg.InlineMax)
		if err != nil {
			return true, l.refuse(err)
		}
		if shown && sameTexts(retained.Content, []events.Block{block}) {
			continue
		}
		if err := l.say(ctx, events.SourceContext, section.Name(), []events.Block{block}); err != nil {
			return true, l.refuse(err)
		}
		return true, nil
	}
	return false, nil
}

// nextCall makes the open step's next model call, or ends the step when there will be none.
func (l *loop) nextCall(ctx context.Context, turn, step int64) error {
	if retry, at, scheduled := l.state.PendingRetry(); scheduled {
		return l.waitRetry(ctx, retry, at)
	}
	_, _, failure := l.state.Outcome()
	attempt := l.state.Attempt()
	if l.refusal != nil {
		return l.endStep(ctx, turn, step)
	}
	if l.view.retrying {
		return l.call(ctx, turn, step)
	}
	switch failure.Code {
	case "", events.FailureInterrupted:
		exhausted := failure.Code != "" && !l.retries(ctx, failure, attempt)
		nothing := l.view.entered == 0 && (step == 1 || l.view.complete)
		if exhausted || nothing {
			return l.endStep(ctx, turn, step)
		}
		return l.call(ctx, turn, step)
	case events.FailureContextWindow:
		return l.overflow(ctx, turn, step)
	case events.FailureInvalid:
		if l.remedy() != remedyNone {
			return l.call(ctx, turn, step)
		}
	default: // as the extensions and the policy say
	}
	again, err := l.tryAgain(ctx, turn, step, attempt, failure)
	switch {
	case err != nil:
		return l.refuse(err)
	case again:
		return l.scheduleRetry(ctx, turn, step, attempt, failure)
	}
	return l.endStep(ctx, turn, step)
}

// point says where the session stands, for extensions.
func (l *loop) point(turn, step int64) Point {
	created, _ := l.state.Created()
	return Point{Session: l.id, Cwd: created.Cwd, Turn: turn, Step: step}
}

// preStep asks the extensions about a step and keeps what they add; cause is not empty when one rejects it.
func (l *loop) preStep(ctx context.Context, turn, step int64, batch []*input) (cause string, err error) {
	at := l.point(turn, step)
	var added []addition
	for _, x := range l.cfg.Extensions.PreStep {
		claimed := make([]events.Input, len(batch))
		for i, in := range batch {
			claimed[i] = in.Input
			claimed[i].Content = slices.Clone(in.Content)
			claimed[i].Attachments = slices.Clone(in.Attachments)
		}
		entry, err := ask(ctx, l, func(ctx context.Context) (Entry, error) { return x.PreStep(ctx, at, claimed) })
		if err != nil {
			return "", extensionError(x, err)
		}
		if entry.Reject != "" {
			return clipText(entry.Reject), nil
		}
		if a, ok := additionOf(x.Name(), entry.Texts); ok {
			added = append(added, a)
		}
	}
	l.added = append(l.added, added...)
	return "", nil
}

// additionOf returns what an extension adds; ok is false when that is nothing.
func additionOf(plugin string, texts []string) (a addition, ok bool) {
	a = addition{plugin: plugin}
	for _, t := range texts {
		if t != "" {
			a.texts = append(a.texts, events.TextFromBytes([]byte(t)))
		}
	}
	return a, len(a.texts) > 0
}

// turnStopping asks the extensions whether the turn may end; more reports that one has something to add.
func (l *loop) turnStopping(ctx context.Context, turn, step int64) (more bool, err error) {
	for _, x := range l.cfg.Extensions.TurnStopping {
		at := l.point(turn, step)
		text, err := ask(ctx, l, func(ctx context.Context) (string, error) { return x.TurnStopping(ctx, at) })
		if err != nil {
			return false, extensionError(x, err)
		}
		if a, ok := additionOf(x.Name(), []string{text}); ok {
			l.added = append(l.added, a)
			more = true
		}
	}
	return more, nil
}
