package foldtest

import (
	"slices"
	"strconv"
	"strings"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// Options bound the logs that [Generate] makes. Zero fields stand for the values named.
type Options struct {
	MaxTurns int      // 3
	MaxSteps int      // in each turn: 3
	Body     BodyFunc // [NoBody]
}

// Generate draws a valid log: turns, steps, failed calls and retries, tool calls in parallel and one at a time, headers
// that change, objects, replacements, prunes, and workers that die anywhere.
func Generate(t *rapid.T, o Options) []events.Event { return GenerateLog(t, o).Events }

// GenerateLog is Generate for those who need payloads, objects or the fold too.
func GenerateLog(t *rapid.T, o Options) *Log {
	if o.MaxTurns == 0 {
		o.MaxTurns = 3
	}
	if o.MaxSteps == 0 {
		o.MaxSteps = 3
	}
	g := &generator{t: t, o: o, Log: New()}
	g.Body = o.Body
	g.next = Header()
	g.session()
	return g.Log
}

// generator appends what it draws. Each method appends a part of the log that leaves it valid.
type generator struct {
	*Log

	t     *rapid.T
	o     Options
	next  events.Header // the header that the next request wants
	calls int           // tool calls made so far, for their ids
}

// one reports true in one of n cases.
func (g *generator) one(n int, what string) bool {
	return rapid.IntRange(1, n).Draw(g.t, what) == n
}

func (g *generator) upTo(n int, what string) int { return rapid.IntRange(0, n).Draw(g.t, what) }

func (g *generator) session() {
	g.Created(g.options())
	g.Claimed(events.ClaimCreated)
	for range 1 + g.upTo(g.o.MaxTurns-1, "more turns") {
		g.between()
		g.turn()
	}
	g.between()
	if g.one(3, "close") {
		g.Closed("done")
	}
}

// between is what happens outside of turns.
func (g *generator) between() {
	if g.one(3, "configure") {
		g.Configured(g.options())
	}
	if g.one(4, "resume") {
		g.Claimed(events.ClaimResumed)
	}
	g.rewrite()
	g.remark()
}

// remark appends events that change nothing.
func (g *generator) remark() {
	switch g.upTo(9, "remark") {
	case 0:
		g.Title(Text().Draw(g.t, "title"))
	case 1:
		g.Append(&events.Unknown{Name: "metrics/sample", Data: `{"load":0.5}`})
	case 2:
		g.Append(&events.ApprovalAsked{ApprovalID: "approval-1", CallID: "call-1", Question: "May it run?"})
		g.Append(&events.ApprovalDecided{ApprovalID: "approval-1", Approved: true, By: "operator"})
	}
}

func (g *generator) options() events.Options {
	o := events.Options{Provider: "deepseek", Model: "deepseek-chat"}
	if g.one(2, "options: model") {
		o.Model = "deepseek-reasoner"
	}
	if g.one(3, "options: effort") {
		o.ReasoningEffort = "high"
	}
	if g.one(3, "options: max tokens") {
		o.MaxTokens = 4096
	}
	if g.one(4, "options: stop") {
		o.Stop = []string{"END", Text().Draw(g.t, "stop")}
	}
	return o
}

func (g *generator) turn() {
	g.TurnStart()
	g.message()
	kind := events.TurnCompleted
	for i := range g.o.MaxSteps {
		g.StepStart()
		if i == 0 || g.one(3, "steer") {
			g.message()
		}
		g.rewrite()
		if !g.model() {
			g.StepEnd()
			kind = events.TurnError
			break
		}
		called := len(g.State.PendingTools()) > 0
		g.tools()
		g.takeover()
		g.StepEnd()
		g.remark()
		if !called {
			break
		}
	}
	g.TurnEnd(kind)
}

// message appends up to two user messages when a step is open.
func (g *generator) message() {
	if _, open := g.State.Step(); !open {
		return
	}
	if g.one(4, "object") {
		g.UserBlocks(events.Text("see the file"), g.object())
	} else {
		g.User(Texts().Draw(g.t, "user")...)
	}
	if g.one(4, "inject") {
		g.Inject(Text().Draw(g.t, "injected"))
	}
}

// object draws one of a few objects, so that some are named more than once.
func (g *generator) object() events.Block {
	return g.TextObject(strings.Repeat("large ", 1+g.upTo(3, "object")))
}

// header appends a header when one is owed, which it sometimes is because it changed.
func (g *generator) header() {
	if g.one(3, "change the header") {
		h := Header()
		h.Config.Temperature = events.Number("0." + strconv.Itoa(1+g.upTo(8, "temperature")))
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
		g.next = h
	}
	g.Header(g.next)
	if g.one(2, "context") {
		g.Context(int64(1+g.upTo(1, "window")) << 16)
	}
}

// model appends the attempts of one step and reports whether the last one gave an answer.
func (g *generator) model() bool {
	const most = 3
	for attempt := range most {
		g.header()
		g.Stream()
		finished := g.stream()
		if g.one(6, "takeover in mid-call") {
			g.Claimed(events.ClaimTakeover)
			g.Failed(events.FailureInterrupted)
			continue
		}
		if finished && !g.one(6, "the answer is no use") {
			g.Answer()
			return true
		}
		g.Failed(rapid.SampledFrom([]events.FailureCode{
			events.FailureServer, events.FailureRateLimit, events.FailureTimeout,
		}).Draw(g.t, "failure"))
		if attempt == most-1 || g.one(4, "give up") {
			return false
		}
		g.Retry()
	}
	return false
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
		if g.one(8, "a title meanwhile") {
			g.Title("while streaming")
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
		switch g.upTo(3, "result") {
		case 0:
			g.ToolError(events.ToolFailed)
		case 1:
			g.ToolResult(events.Text("first"), g.object())
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

// rewrite replaces part of the surface, or prunes a result.
func (g *generator) rewrite() {
	switch g.upTo(5, "rewrite") {
	case 0:
		regions := g.balanced()
		if len(regions) == 0 {
			return
		}
		r := rapid.SampledFrom(regions).Draw(g.t, "region")
		id := "compaction-" + strconv.FormatUint(g.Len(), 10)
		g.Append(&events.CompactionStart{CompactionID: id})
		g.Append(&events.CompactionSummary{
			CompactionID: id, Region: r, Shadowed: g.nodes(r.Start, r.End), Provider: "deepseek", Model: "deepseek-chat",
			Summary: []events.Block{events.Text("so far")},
		})
		g.Replace(r.Start, r.End, "summary: so far")
		g.Append(&events.CompactionEnd{CompactionID: id, Outcome: events.CompactionCompleted})
	case 1:
		results := slices.DeleteFunc(g.State.Nodes(), func(seq uint64) bool {
			return g.Events[seq-1].Type() != events.TypeToolResult
		})
		if len(results) > 0 {
			g.Prune(rapid.SampledFrom(results).Draw(g.t, "pruned"), events.Text("(removed)"))
		}
	}
}

// balanced returns the regions of the surface that hold each call with its result.
func (g *generator) balanced() []events.Region {
	nodes := g.State.Nodes()
	var regions []events.Region
	for lo := range nodes {
		open := make(map[string]bool)
		for _, end := range nodes[lo:] {
			if !balance(open, g.Events[end-1].Body) {
				break
			}
			if len(open) == 0 {
				regions = append(regions, events.Region{Start: nodes[lo], End: end})
			}
		}
	}
	return regions
}

// balance enters the body's calls and results in open; false when a result has no call there.
func balance(open map[string]bool, body events.Body) bool {
	switch b := body.(type) {
	case *events.AssistantMessage:
		for _, block := range b.Message.Content {
			if block.Type == events.BlockToolCall {
				open[block.ID] = true
			}
		}
	case *events.ToolResult:
		if !open[b.CallID()] {
			return false
		}
		delete(open, b.CallID())
	}
	return true
}

// Text draws well-formed text: plain, of many scripts, with characters that need escapes, lone surrogates and bytes
// that are not UTF-8.
func Text() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return events.JoinText(rapid.SliceOfN(piece(), 0, 4).Draw(t, "pieces")...)
	})
}

// Texts draws one to four texts, between which surrogate pairs may be split.
func Texts() *rapid.Generator[[]string] { return rapid.SliceOfN(Text(), 1, 4) }

func piece() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringN(0, 8, -1),
		rapid.SampledFrom([]string{
			" ", "\n", "the quick brown fox", `{"path":"a/b.go"}`, "\U0001F600", "\xed\xa0\xbd", "\xed\xb8\x80", "\u2028",
			"\x00", "\ufeff", `"\`, "9007199254740993", "<&>", "\u00e9\u0301",
		}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 6), events.TextFromBytes),
	)
}
