package foldtest

import (
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Compact appends a whole compaction of the surface nodes start to end that needs no model call.
func (l *Log) Compact(start, end uint64, texts ...string) uint64 {
	l.CompactionStart(events.CompactionPressure)
	l.Summary(start, end, texts...)
	l.PutSummary()
	return l.CompactionEnd(events.CompactionCompleted)
}

// CompactionStart appends compaction/start. It claims the next input when the reason is a command outside of turns.
func (l *Log) CompactionStart(reason events.CompactionReason) uint64 {
	b := &events.CompactionStart{CompactionID: fmt.Sprintf("compaction-%d", l.Len()+1), Turn: l.openTurn(), Reason: reason}
	if reason == events.CompactionCommand && b.Turn == 0 {
		b.Claim = l.NextClaim()
	}
	return l.Append(b)
}

// AuxConfig is the configuration of every auxiliary call that [Log.AuxBody] makes.
func AuxConfig() events.Config {
	return events.Config{Provider: "deepseek", Model: "deepseek-chat", MaxTokens: 512}
}

// AuxBody returns the llm/stream of an auxiliary call about the region, zero for none, with the directive given.
func (l *Log) AuxBody(purpose events.Purpose, region events.Region, directive ...events.Block) *events.LLMStream {
	attempt := l.State.TitleAttempt()
	if c, ok := l.State.Compaction(); ok && purpose == events.PurposeCompaction {
		attempt = c.Attempt
	}
	b := &events.LLMStream{
		Turn: l.openTurn(), Step: l.openStep(), Attempt: attempt + 1, Purpose: purpose,
		Auxiliary: &events.Auxiliary{Config: AuxConfig(), Region: region, Directive: directive},
	}
	l.fill(b)
	return b
}

// AuxStream appends the llm/stream of [Log.AuxBody]. The header must be recorded.
func (l *Log) AuxStream(purpose events.Purpose, region events.Region, directive ...events.Block) uint64 {
	return l.Append(l.AuxBody(purpose, region, directive...))
}

// Summary appends a compaction/summary of the surface nodes start to end for the open compaction, which made no call.
func (l *Log) Summary(start, end uint64, texts ...string) uint64 {
	return l.Append(&events.CompactionSummary{
		CompactionID: l.compactionID(), Region: events.Region{Start: start, End: end}, Shadowed: l.nodes(start, end), ShadowedTokens: 100,
		Summary: textBlocks(texts), Provider: "deepseek", Model: "deepseek-chat",
	})
}

// SummaryBody returns the compaction/summary that the open call's chunks add up to, and the events that it cites.
func (l *Log) SummaryBody() (*events.CompactionSummary, Option) {
	stream, _, answer, chunks, ok := l.State.OpenCall()
	if !ok || stream.Auxiliary == nil {
		panic("foldtest: no auxiliary call is open")
	}
	a := stream.Auxiliary
	return &events.CompactionSummary{
		CompactionID: l.compactionID(), Region: a.Region, Shadowed: l.nodes(a.Region.Start, a.Region.End), ShadowedTokens: 100,
		Summary: answer.Texts(), Provider: a.Config.Provider, Model: a.Config.Model, MaxTokens: a.Config.MaxTokens,
		Usage: answer.Usage, UsageReported: answer.UsageReported,
	}, Citing(chunks...)
}

// SummaryOfCall appends the compaction/summary that the open call's chunks add up to.
func (l *Log) SummaryOfCall() uint64 {
	body, citing := l.SummaryBody()
	return l.Append(body, citing)
}

// PutBody returns the user/message that puts the open compaction's summary in the place of its region, and what it cites
// and replaces.
func (l *Log) PutBody() (body *events.UserMessage, citing, replacing Option) {
	c, _ := l.State.Compaction()
	r := c.Summary.Region
	source := events.Source{Kind: events.SourcePlugin, Plugin: "compact", CompactionID: c.Start.CompactionID}
	sources := append([]uint64{c.StartSeq, c.SummarySeq}, l.nodes(r.Start, r.End)...)
	return &events.UserMessage{Message: l.userMessage(source, c.Summary.Summary)}, Citing(sources...), Replacing(r.Start, r.End)
}

// PutSummary appends the user/message of [Log.PutBody].
func (l *Log) PutSummary() uint64 {
	body, citing, replacing := l.PutBody()
	return l.Append(body, citing, replacing)
}

// CompactionEnd appends compaction/end.
func (l *Log) CompactionEnd(outcome events.CompactionOutcome) uint64 {
	return l.Append(&events.CompactionEnd{CompactionID: l.compactionID(), Turn: l.openTurn(), Outcome: outcome})
}

func (l *Log) compactionID() string {
	c, ok := l.State.Compaction()
	if !ok {
		panic("foldtest: no compaction is open")
	}
	return c.Start.CompactionID
}

// openTurn and openStep return the numbers of what is open, 0 when nothing is.
func (l *Log) openTurn() int64 {
	if turn, open := l.State.Turn(); open {
		return turn
	}
	return 0
}

func (l *Log) openStep() int64 {
	if step, open := l.State.Step(); open {
		return step
	}
	return 0
}

// TitleOfCall appends the session/title that ends the open title call.
func (l *Log) TitleOfCall(title string) uint64 {
	_, _, _, chunks, ok := l.State.OpenCall()
	if !ok {
		panic("foldtest: no model call is open")
	}
	return l.Append(&events.SessionTitle{Title: title}, Citing(chunks...))
}

// ImageBlock makes an object of the bytes, which need not be an image, and returns an image block that shows it.
func (l *Log) ImageBlock(data []byte, width, height int64) events.Block {
	return events.Block{Type: events.BlockImage, Object: l.Object(data, "image/png"), Width: width, Height: height}
}

// Images appends request/images.
func (l *Log) Images(images ...events.ImageShown) uint64 {
	return l.Append(&events.RequestImages{Images: images})
}

// Inline returns that the image is shown by the bytes of sent, an object of this log.
func Inline(image objects.Digest, label string, sent objects.Ref) events.ImageShown {
	return events.ImageShown{Image: image, As: events.ImageInline, Label: label, Object: sent}
}

// Placeholder returns that the image is shown as text.
func Placeholder(image objects.Digest, label string) events.ImageShown {
	return events.ImageShown{Image: image, As: events.ImageText, Label: label}
}

// File returns that the image is shown by a file of the provider.
func File(image objects.Digest, id string) events.ImageShown {
	return events.ImageShown{Image: image, As: events.ImageFile, FileID: id, Width: 4, Height: 3}
}

// OpenFork returns the log of a fork as a worker opens it: the copies of the first n events of l, loop/claimed, and
// session/configured with the options, which claims the first input of the fork's own inbox.
func (l *Log) OpenFork(n int, o events.Options) *Log {
	f := l.Fork(n)
	f.Claimed(events.ClaimCreated)
	f.Configured(o)
	return f
}
