package tamper_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// editKinds change the bytes of one payload.
func editKinds() []kind {
	return []kind{
		{"log: bit flipped", 6, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			payload := bytes.Clone(b.Messages[i].Payload)
			payload[d.index(len(payload))] ^= 1 << d.index(8)
			return b.edited(d, i, payload)
		}},
		{"log: payload cut", 2, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			return b.edited(d, i, b.Messages[i].Payload[:d.index(len(b.Messages[i].Payload))])
		}},
		{"log: payload padded", 2, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			at, payload := d.index(len(b.Messages[i].Payload)+1), b.Messages[i].Payload
			return b.edited(d, i, slices.Concat(payload[:at], []byte(" "), payload[at:]))
		}},
		{"log: scalar changed", 6, func(d *dice, b *base) (mutation, bool) {
			i, payload := b.edit(d)
			return b.edited(d, i, payload)
		}},
		{"log: scalar changed, message made to fit", 3, scalarAndLabel},
		{"log: scalar changed, relinked", 8, scalarRelinked},
		{"log: shown text changed, relinked", 4, textRelinked},
	}
}

// edited puts another payload in the place of message i.
func (b *base) edited(d *dice, i int, payload []byte) (mutation, bool) {
	messages := slices.Clone(b.Messages)
	messages[i].Payload = payload
	want, maybe := b.whatBreaks(i, payload)
	return b.logged(d, fmt.Sprintf("event %d: %.400q", i+1, payload), messages, b.last(), want, maybe)
}

// whatBreaks returns what an auditor finds when payload is all that changes: it is no event, contradicts its message, does not
// link to the one before, or breaks a rule of its type. If it does none of that the next one does not link to it; behind the
// last one nothing shows it.
func (b *base) whatBreaks(i int, payload []byte) (want found, maybe bool) {
	m := &b.Messages[i]
	e, err := events.Decode(payload)
	switch {
	case errors.Is(err, events.ErrVersion), errors.Is(err, events.ErrUnknownType):
		return invalid(audit.RuleVersion), false
	case err != nil:
		return invalid(audit.RulePayload), false
	case e.Seq != m.Seq, e.ID != m.ID, e.Type() != m.Type:
		return broken(audit.RuleMessage), false
	case e.Prev != b.Events[i].Prev:
		return broken(string(fold.RuleChain)), false
	}
	want = b.byItself(i)
	if i+1 < len(b.Messages) {
		return append(want, broken(string(fold.RuleChain))...), false
	}
	return want, true
}

// byItself returns what event i can do wrong when nothing else changes: what its type can, and as the last one that a fork
// copied, not to add up.
func (b *base) byItself(i int) found {
	want := ofType(b.Events[i].Type())
	if b.copied(uint64(i + 1)) {
		want = append(want, invalid(string(fold.RuleSeed))...)
	}
	return want
}

// ofType returns what an event of the type can do wrong by itself.
func ofType(t events.Type) found {
	want := invalid(ruleNames(map[events.Type][]fold.Rule{
		events.TypeSessionCreated:    {fold.RuleFirst, fold.RuleSeed},
		events.TypeSessionConfigured: {fold.RuleInput},
		events.TypeSessionEndSeed:    {fold.RuleSeed},
		events.TypeSessionTitle:      {fold.RuleAnswer},
		events.TypeSessionClosed:     {fold.RuleInput, fold.RuleClosed},
		events.TypeInputDropped:      {fold.RuleInput},
		events.TypeTurnStart:         {fold.RuleTurn, fold.RuleCancel},
		events.TypeTurnEnd:           {fold.RuleTurn, fold.RuleCancel},
		events.TypeTurnCancelled:     {fold.RuleCancel, fold.RuleInput},
		events.TypeStepStart:         {fold.RuleStep},
		events.TypeStepEnd:           {fold.RuleStep},
		events.TypeUserMessage:       {fold.RuleMessage, fold.RuleInput, fold.RuleReplace, fold.RuleCompaction},
		events.TypeRequestHeader:     {fold.RuleHeader, fold.RuleConfig},
		events.TypeRequestContext:    {fold.RuleContext},
		events.TypeRequestImages:     {fold.RuleImages},
		events.TypeLLMStream:         {fold.RuleStream, fold.RuleCompaction},
		events.TypeAssistantChunk:    {fold.RuleChunk},
		events.TypeAssistantMessage:  {fold.RuleAnswer, fold.RuleCall, fold.RuleReplace},
		events.TypeLLMFailed:         {fold.RuleFailure},
		events.TypeLLMRetry:          {fold.RuleFailure},
		events.TypeLLMRetryStarted:   {fold.RuleFailure},
		events.TypeToolCall:          {fold.RuleCall},
		events.TypeToolResult:        {fold.RuleResult, fold.RuleReplace},
		events.TypeCompactionStart:   {fold.RuleCompaction, fold.RuleInput},
		events.TypeCompactionSummary: {fold.RuleCompaction, fold.RuleAnswer},
		events.TypeCompactionEnd:     {fold.RuleCompaction, fold.RuleAnswer},
	}[t]...)...)
	if t == events.TypeLLMStream {
		want = slices.Concat(want, of(audit.Mismatch, ""), of(audit.UnknownCodec, ""))
	}
	return want
}

// behindType returns what an event of the type can make others behind it do wrong, when they link to it. In a fork's copies
// it is always the seed that does not add up.
func behindType(t events.Type) found {
	want := invalid(ruleNames(map[events.Type][]fold.Rule{
		events.TypeSessionCreated:    {fold.RuleInput, fold.RuleConfig}, // a claim that comes twice, options that no header follows
		events.TypeSessionConfigured: {fold.RuleInput, fold.RuleConfig},
		events.TypeSessionClosed:     {fold.RuleInput},
		events.TypeInputDropped:      {fold.RuleInput},
		events.TypeTurnCancelled:     {fold.RuleInput, fold.RuleTurn, fold.RuleCancel},
		events.TypeUserMessage:       {fold.RuleInput, fold.RuleStream, fold.RuleMessage},
		events.TypeRequestHeader:     {fold.RuleHeader, fold.RuleConfig, fold.RuleContext, fold.RuleStream, fold.RuleAnswer},
		events.TypeRequestContext:    {fold.RuleContext},
		events.TypeRequestImages:     {fold.RuleStream, fold.RuleImages},
		events.TypeLLMStream:         {fold.RuleChunk, fold.RuleAnswer, fold.RuleFailure},
		events.TypeAssistantChunk:    {fold.RuleChunk, fold.RuleAnswer},
		events.TypeAssistantMessage:  {fold.RuleCall, fold.RuleResult},
		events.TypeLLMRetry:          {fold.RuleFailure},
		events.TypeToolResult:        {fold.RuleReplace, fold.RuleMessage, fold.RuleStream}, // objects, and added context
		events.TypeCompactionStart:   {fold.RuleCompaction, fold.RuleInput},
		events.TypeCompactionSummary: {fold.RuleCompaction, fold.RuleInput},
	}[t]...)...)
	shows := t.Surface() || t == events.TypeRequestHeader || t == events.TypeRequestImages
	if shows {
		want = slices.Concat(want, of(audit.Mismatch, ""), of(audit.MissingObject, ""), of(audit.CorruptObject, ""), invalid(audit.RuleCodec))
	}
	return append(want, invalid(string(fold.RuleSeed))...)
}

// edit draws an event and returns its payload with one JSON scalar replaced.
func (b *base) edit(d *dice) (i int, payload []byte) {
	i = d.index(len(b.Messages))
	all := slices.Collect(edits(b.Messages[i].Payload))
	return i, all[d.index(len(all))]
}

// scalarAndLabel changes an ID or a type in the payload and on the message.
func scalarAndLabel(d *dice, b *base) (mutation, bool) {
	i, payload := b.edit(d)
	e, err := events.Decode(payload)
	if err != nil || e.Seq != uint64(i+1) || e.ID == b.Messages[i].ID && e.Type() == b.Messages[i].Type {
		return mutation{}, false
	}
	messages := slices.Clone(b.Messages)
	messages[i].Payload, messages[i].ID, messages[i].Type = payload, e.ID, e.Type()
	want, maybe := slices.Concat(b.byItself(i), invalid(audit.RuleID, string(fold.RuleFirst))), i+1 == len(b.Messages)
	if !maybe {
		want = append(want, broken(string(fold.RuleChain))...)
	}
	return b.logged(d, fmt.Sprintf("event %d and its label: %.400q", i+1, payload), messages, b.last(), want, maybe)
}

// scalarRelinked changes a scalar and makes the whole log behind it fit.
func scalarRelinked(d *dice, b *base) (mutation, bool) {
	i, payload := b.edit(d)
	e, err := events.Decode(payload)
	if err != nil || e.Seq != uint64(i+1) || e.Type() != b.Messages[i].Type || e.Prev != b.Events[i].Prev {
		return mutation{}, false // it is noticed there, whatever is behind it
	}
	messages := slices.Clone(b.Messages)
	messages[i].Payload, messages[i].ID = payload, e.ID
	want := slices.Concat(ofType(e.Type()), behindType(e.Type()), invalid(audit.RuleID))
	return b.logged(d, fmt.Sprintf("event %d, relinked: %.400q", i+1, payload), audittest.Relink(messages, i), b.last(), want, true)
}

// textRelinked changes a text that a later request shows, and makes the log fit but for the digests of the bodies.
func textRelinked(d *dice, b *base) (mutation, bool) {
	i := d.index(len(b.Messages))
	e, err := events.Decode(b.Messages[i].Payload)
	if err != nil {
		panic(err)
	}
	var m *events.Message
	switch body := e.Body.(type) {
	case *events.UserMessage:
		m = &body.Message
	case *events.ToolResult:
		m = &body.Message
	default:
		return mutation{}, false
	}
	if !alter(m.Content) || b.Events[i].Surface.Kind != events.SurfaceAppend {
		return mutation{}, false
	}
	if shown, copied := b.shown(uint64(i+1)), b.copied(uint64(i+1)); !shown || copied {
		return mutation{}, false
	}
	messages := slices.Clone(b.Messages)
	if messages[i].Payload, err = events.Encode(&e); err != nil {
		panic(err)
	}
	want := of(audit.Mismatch, "")
	if _, owed := e.Body.(*events.UserMessage); owed && len(e.Sources) > 0 {
		want = invalid(string(fold.RuleMessage)) // an added context is compared with the result that brought it
	}
	return b.logged(d, fmt.Sprintf("text of event %d, relinked", i+1), audittest.Relink(messages, i), b.last(), want, false)
}

// alter changes the first text.
func alter(blocks []events.Block) bool {
	for i := range blocks {
		if blocks[i].Type == events.BlockText && blocks[i].Object == (events.Block{}).Object {
			blocks[i].Text += "x"
			return true
		}
		if alter(blocks[i].Content) {
			return true
		}
	}
	return false
}

// shown reports whether a request of the loop comes while the event stands on the surface.
func (b *base) shown(seq uint64) bool {
	for _, e := range b.Events[seq:] {
		if s, ok := e.Body.(*events.LLMStream); ok && s.Auxiliary == nil {
			return true
		}
		if e.Surface.Kind == events.SurfaceReplace && slices.Contains(e.Sources, seq) {
			return false
		}
	}
	return false
}

// copied reports whether the event was copied from a fork's parent.
func (b *base) copied(seq uint64) bool {
	created := b.Events[0].Body.(*events.SessionCreated)
	return created.SeedLength > 0 && seq <= created.SeedLength+1
}

// edits yields the payload with each JSON scalar replaced by another one of its kind.
func edits(payload []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for i := 0; i < len(payload); i++ {
			start := i
			switch c := payload[i]; {
			case c == '"':
				for i++; payload[i] != '"'; i++ {
					if payload[i] == '\\' {
						i++
					}
				}
				if i+1 < len(payload) && payload[i+1] == ':' {
					continue
				}
			case c == '-' || c >= '0' && c <= '9':
				for i+1 < len(payload) && bytes.IndexByte([]byte("0123456789+-.eE"), payload[i+1]) >= 0 {
					i++
				}
			case c >= 'a' && c <= 'z':
				for i+1 < len(payload) && payload[i+1] >= 'a' && payload[i+1] <= 'z' {
					i++
				}
			default:
				continue
			}
			for _, other := range alternatives(payload[start : i+1]) {
				if !yield(slices.Concat(payload[:start], other, payload[i+1:])) {
					return
				}
			}
		}
	}
}

// alternatives returns plausible values other than the scalar.
func alternatives(scalar []byte) [][]byte {
	switch string(scalar) {
	case "true":
		return [][]byte{[]byte("false")}
	case "false":
		return [][]byte{[]byte("true")}
	case "null":
		return [][]byte{[]byte("0")}
	}
	if scalar[0] != '"' {
		n, err := strconv.ParseInt(string(scalar), 10, 64)
		if err != nil {
			return [][]byte{[]byte("1")}
		}
		if n == 0 {
			return [][]byte{[]byte("1")}
		}
		return [][]byte{strconv.AppendInt(nil, n+1, 10), strconv.AppendInt(nil, n-1, 10)}
	}
	inner := scalar[1 : len(scalar)-1]
	longer := slices.Concat([]byte(`"`), inner, []byte(`x"`))
	if len(inner) == 0 {
		return [][]byte{longer}
	}
	if len(inner) == 26 || len(inner) == 64 { // an ID or a digest
		other := slices.Clone(scalar)
		if other[len(other)-2]++; other[len(other)-2] > '9' {
			other[len(other)-2] = '0'
		}
		return [][]byte{other}
	}
	return [][]byte{longer, []byte(`""`)}
}
