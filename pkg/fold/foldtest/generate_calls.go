package foldtest

import (
	"slices"
	"strconv"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// header appends a header when one is owed, which it sometimes is because it changed. Its configuration is what the log
// gives, or what an extension makes of it.
func (g *generator) header() {
	if g.one(3, "change the header") {
		h := Header()
		h.Config.Temperature = events.Number("0." + strconv.Itoa(1+g.upTo(8, "temperature")))
		g.worker.Temperature = h.Config.Temperature
		switch g.upTo(3, "header part") {
		case 0:
			h.Tools = h.Tools[:g.upTo(1, "tools")]
		case 1:
			h.System, h.SystemObject = "", g.object().Object
		case 2:
			tools, err := events.AppendTools(nil, h.Tools)
			if err != nil {
				g.t.Fatal(err)
			}
			h.Tools, h.ToolsObject = nil, g.Object(tools, events.ToolsMediaType)
		case 3:
			h.Config.MaxTokens, h.AdapterDefaults.MaxTokens = 8192, true
		}
		g.next, g.changes = h, g.one(3, "an extension changes it")
		g.fills = [2]bool{g.one(2, "fill in the effort"), g.one(2, "fill in the tokens")}
	}
	h := g.next.Clone()
	if !g.changes {
		g.seed(&h)
	}
	g.Header(h)
	if g.one(2, "context") {
		g.Context(int64(1+g.upTo(1, "window")) << 16)
	}
	g.images()
}

// seed gives the header the configuration that the log gives, with what the adapter fills in.
func (g *generator) seed(h *events.Header) {
	h.Config, h.AdapterDefaults = g.State.ConfigSeed(g.worker), events.AdapterDefaults{}
	if g.fills[0] && h.Config.ReasoningEffort == "" {
		h.Config.ReasoningEffort, h.AdapterDefaults.ReasoningEffort = "medium", true
	}
	if g.fills[1] && h.Config.MaxTokens == 0 {
		h.Config.MaxTokens, h.AdapterDefaults.MaxTokens = 8192, true
	}
}

// model appends the attempts of one step and reports whether the last one gave an answer.
func (g *generator) model() bool {
	const most = 3
	for attempt := range most {
		if g.stopped() {
			return false
		}
		if g.title(); g.stopped() {
			return false
		}
		g.header()
		g.Stream()
		finished := g.stream()
		if g.stopped() {
			return false
		}
		if g.one(6, "takeover in mid-call") {
			g.Claimed(events.ClaimTakeover)
			g.Failed(events.FailureInterrupted)
			continue
		}
		if finished && !g.one(6, "the answer is no use") {
			g.Answer()
			return true
		}
		if !g.again(attempt == most-1) {
			return false
		}
		if g.one(4, "overflow") {
			g.compaction(events.CompactionOverflow)
		}
	}
	return false
}

// again ends a call with a failure and reports whether another one follows.
func (g *generator) again(last bool) bool {
	g.Failed(rapid.SampledFrom([]events.FailureCode{
		events.FailureServer, events.FailureRateLimit, events.FailureTimeout,
	}).Draw(g.t, "failure"))
	if last || g.one(4, "give up") {
		return false
	}
	if g.one(5, "at once") {
		return true
	}
	g.RetryScheduled()
	g.takeover()
	if g.stopped() {
		return false
	}
	g.RetryStarted()
	return true
}

// stream appends the chunks of one answer in packed runs, and reports whether it finished.
func (g *generator) stream() bool {
	chunks := g.chunks()
	finished := !g.one(6, "the stream breaks")
	if !finished {
		chunks = chunks[:g.upTo(len(chunks)-1, "broken at")]
	}
	for len(chunks) > 0 {
		n := 1 + g.upTo(len(chunks)-1, "run")
		g.Chunks(chunks[:n:n]...)
		chunks = chunks[n:]
		if g.open().Purpose == events.PurposeLoop && g.one(8, "a title meanwhile") {
			g.Title("while streaming")
		}
		if g.one(8, "cancel here") && g.stopped() {
			return false
		}
	}
	return finished
}

// chunks draws the chunks of an answer: up to four blocks, interleaved at random, each in its own order.
func (g *generator) chunks() []events.Chunk {
	var starts, queue [][]events.Chunk
	for i := range g.upTo(4, "blocks") {
		var b []events.Chunk
		texts := Texts().Draw(g.t, "deltas")
		index := int64(i)
		switch g.upTo(3, "block") {
		case 0:
			b = ReasoningBlock(index, texts...)
		case 1:
			b = TextBlock(index, texts...)
		default:
			g.calls++
			b = CallBlock(index, "call-"+strconv.Itoa(g.calls), "read", texts...)
		}
		starts = append(starts, b[:1])
		queue = append(queue, b[1:])
	}
	out := slices.Concat(starts...)
	for len(queue) > 0 {
		i := g.upTo(len(queue)-1, "which block")
		out = append(out, queue[i][0])
		if queue[i] = queue[i][1:]; len(queue[i]) == 0 {
			queue = slices.Delete(queue, i, i+1)
		}
	}
	for range g.upTo(2, "usages") {
		out = append(out, UsageChunk(events.Usage{
			InputTokens: int64(g.upTo(1000, "input")), CacheReported: true, CacheReadTokens: int64(g.upTo(5000, "read")),
			OutputTokens: int64(g.upTo(200, "output")),
		}))
	}
	return append(out, FinishChunk(rapid.SampledFrom([]events.FinishKind{
		events.FinishStop, events.FinishToolCalls, events.FinishMaxTokens, events.FinishAborted,
	}).Draw(g.t, "finish")))
}

// tools answers every call of the step.
func (g *generator) tools() {
	if g.one(2, "in parallel") {
		for _, p := range g.State.PendingTools() {
			if p.CallSeq == 0 {
				g.ToolCall()
			}
		}
	}
	for len(g.State.PendingTools()) > 0 {
		if g.stopped() {
			return
		}
		if g.one(6, "takeover in mid-tool") {
			g.Claimed(events.ClaimTakeover)
			for _, p := range g.State.PendingTools() {
				if p.CallSeq == 0 {
					g.ToolError(events.ToolNotStarted)
				} else {
					g.ToolError(events.ToolOutcomeUnknown)
				}
			}
			return
		}
		if g.State.PendingTools()[0].CallSeq == 0 {
			g.ToolCall()
		}
		if g.stopped() {
			return
		}
		switch g.upTo(5, "result") {
		case 0:
			g.ToolError(events.ToolFailed)
		case 1:
			g.ToolResult(events.Text("first"), g.object())
		case 2:
			g.ToolResultWith([]events.AddedContext{{Plugin: "lint", Text: Text().Draw(g.t, "added")}, {Plugin: "lint", Text: "again"}})
		case 3:
			if g.o.Images {
				g.ToolResult(g.image(), events.Text("a picture"))
				break
			}
			g.ToolResult()
		default:
			g.ToolResult(textBlocks(Texts().Draw(g.t, "output"))...)
		}
	}
}

// takeover lets another instance go on.
func (g *generator) takeover() {
	if g.one(6, "takeover") {
		g.Claimed(events.ClaimTakeover)
	}
}
