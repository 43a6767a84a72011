package simulator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/refold-dev/refold/pkg/events"
)

// created is the creation time of every answer: equal requests get equal bytes.
const created = 1_700_000_000

const defaultDelta = 8 // code points

// errGone ends a stream early: the client went away or the script says so.
var errGone = errors.New("the stream ends here")

// stream writes one answer.
type stream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	ctx    context.Context
	answer *Answer
	model  string
	usage  []byte
	prefix []byte // of every chunk object, up to its choices
	deltas int    // sent so far
	begun  bool
}

// run writes the whole answer, or as much of it as its failure lets it. The error wraps [errGone] or is the
// connection's.
func (s *stream) run(m *message, id string) error {
	s.prefix = append(s.prefix, `{"id":`...)
	s.prefix = events.AppendQuote(s.prefix, id)
	s.prefix = fmt.Appendf(s.prefix, `,"object":"chat.completion.chunk","created":%d,"model":`, created)
	s.prefix = append(events.AppendQuote(s.prefix, s.model), `,"choices":`...)

	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	s.w.WriteHeader(http.StatusOK)
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.text("reasoning_content", m.reasoning); err != nil {
		return err
	}
	if err := s.text("content", m.content); err != nil {
		return err
	}
	for i := range m.calls {
		if err := s.call(i, &m.calls[i], s.answer.Calls[i].NoID); err != nil {
			return err
		}
	}
	if err := s.fail(true); err != nil {
		return err
	}
	return s.end()
}

// end writes finish_reason, usage and [DONE].
func (s *stream) end() error {
	finish := []byte(`[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":`)
	finish = append(events.AppendQuote(finish, s.answer.finish()), "}]"...)
	place := s.answer.UsageAt
	if s.usage == nil {
		place = UsageNone
	}
	if place == "" || place == UsageLast {
		finish = append(append(finish, `,"usage":`...), s.usage...)
	}
	if err := s.chunk(finish); err != nil {
		return err
	}
	if place == UsageSeparate {
		if err := s.chunk(append([]byte(`[],"usage":`), s.usage...)); err != nil {
			return err
		}
	}
	if f := s.answer.Failure; f != nil && f.Kind == FailNoDone {
		return s.flush()
	}
	return s.write([]byte("data: [DONE]\n\n"))
}

func (s *stream) text(field, text string) error {
	for text != "" {
		part := s.cut(&text)
		d := append([]byte{'"'}, field...)
		d = append(d, `":`...)
		if err := s.delta(events.AppendQuote(d, part)); err != nil {
			return err
		}
	}
	return nil
}

// call writes a tool call: a delta with its name, then its arguments.
func (s *stream) call(i int, c *toolCall, noID bool) error {
	d := fmt.Appendf(nil, `"tool_calls":[{"index":%d,`, i)
	if !noID {
		d = append(events.AppendQuote(append(d, `"id":`...), c.id), ',')
	}
	d = append(d, `"type":"function","function":{"name":`...)
	d = append(events.AppendQuote(d, c.name), `,"arguments":""}}]`...)
	if err := s.delta(d); err != nil {
		return err
	}
	for rest := c.arguments; rest != ""; {
		part := s.cut(&rest)
		d := fmt.Appendf(nil, `"tool_calls":[{"index":%d,"function":{"arguments":`, i)
		if err := s.delta(append(events.AppendQuote(d, part), `}}]`...)); err != nil {
			return err
		}
	}
	return nil
}

// cut takes the next delta's text off the front of rest.
func (s *stream) cut(rest *string) string {
	size := defaultDelta
	if sizes := s.answer.DeltaSizes; len(sizes) > 0 {
		size = sizes[s.deltas%len(sizes)]
	}
	if s.answer.UTF16 {
		part, after := cutUTF16(*rest, size)
		*rest = after
		return part
	}
	part := head(*rest, size)
	*rest = (*rest)[len(part):]
	return part
}

// cutUTF16 cuts text after n code units of UTF-16, within a surrogate pair if they end there.
func cutUTF16(text string, n int) (part, rest string) {
	at := 0
	for ; n > 0 && at < len(text); n-- {
		size := codePoint(text[at:])
		if size == utf8.UTFMax {
			if n == 1 {
				r, _ := utf8.DecodeRuneInString(text[at:])
				high, low := utf16.EncodeRune(r)
				return text[:at] + surrogate(high), surrogate(low) + text[at+size:]
			}
			n--
		}
		at += size
	}
	return text[:at], text[at:]
}

// surrogate returns a surrogate as it stands in text, see [events.ValidText].
func surrogate(r rune) string {
	return string([]byte{0xED, 0x80 | byte(r>>6&0x3F), 0x80 | byte(r&0x3F)})
}

// codePoint returns the length in bytes of the code point at the start of well-formed text, a lone surrogate included.
func codePoint(text string) int {
	const surrogateSize = 3
	if len(text) >= surrogateSize && text[0] == 0xED && text[1] >= 0xA0 {
		return surrogateSize
	}
	_, n := utf8.DecodeRuneInString(text)
	return n
}

// delta writes a chunk with the members of a delta, after what the script puts before it.
func (s *stream) delta(members []byte) error {
	if err := s.fail(false); err != nil {
		return err
	}
	if delays := s.answer.DelaysMs; len(delays) > 0 {
		if err := pause(s.ctx, time.Duration(delays[s.deltas%len(delays)])*time.Millisecond); err != nil {
			return err
		}
	}
	s.deltas++
	choices := []byte(`[{"index":0,"delta":{`)
	if !s.begun {
		s.begun = true
		choices = append(choices, `"role":"assistant",`...)
	}
	return s.chunk(append(append(choices, members...), `},"logprobs":null,"finish_reason":null}]`...))
}

// fail does what goes wrong at this point, before the next delta or, last, after all of them.
func (s *stream) fail(last bool) error {
	f := s.answer.Failure
	if f == nil || s.deltas != f.After && (!last || s.deltas >= f.After) {
		return nil
	}
	switch f.Kind {
	case FailReset:
		return reset(s.rc)
	case FailTruncate:
		return errGone
	case FailError:
		body := string(f.Body)
		if body == "" {
			body = `{"error":{"message":"The server had an error while processing your request","type":"server_error"}}`
		}
		body = strings.ReplaceAll(body, "\n", "\ndata: ")
		if err := s.write([]byte("event: error\ndata: " + body + "\n\n")); err != nil {
			return err
		}
		return errGone
	case FailMalformed:
		if err := s.write([]byte("data: {\"choices\":[{\"delta\":{\"content\":\n\n")); err != nil {
			return err
		}
		return errGone
	case FailHang:
		return hang(s.ctx, f)
	default: // it fails before the first delta, or behind the last
		return nil
	}
}

// hang waits for as long as the failure says, at least until the client goes away.
func hang(ctx context.Context, f *Failure) error {
	if f.HangMs > 0 {
		return pause(ctx, time.Duration(f.HangMs)*time.Millisecond)
	}
	<-ctx.Done()
	return errGone
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return errGone
	case <-t.C:
		return nil
	}
}

// reset closes the connection so that the client sees a reset.
func reset(rc *http.ResponseController) error {
	conn, _, err := rc.Hijack()
	if err != nil {
		return fmt.Errorf("reset the connection: %w", err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the client sees an early end instead
	}
	_ = conn.Close()
	return errGone
}

// chunk writes a chunk object: choices, and what follows them.
func (s *stream) chunk(rest []byte) error {
	b := append([]byte("data: "), s.prefix...)
	return s.write(append(append(b, rest...), "}\n\n"...))
}

func (s *stream) write(b []byte) error {
	if s.ctx.Err() != nil {
		return errGone
	}
	if _, err := s.w.Write(b); err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	return s.flush()
}

func (s *stream) flush() error {
	if err := s.rc.Flush(); err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	return nil
}

// usageOf returns the usage object as DeepSeek reports it.
func usageOf(prompt, hit, completion, reasoning int64) []byte {
	field := func(b []byte, name string, n int64) []byte {
		return strconv.AppendInt(append(append(append(b, '"'), name...), `":`...), n, 10)
	}
	b := field([]byte{'{'}, "prompt_tokens", prompt)
	b = field(append(b, ','), "completion_tokens", completion)
	b = field(append(b, ','), "total_tokens", prompt+completion)
	b = append(field(append(b, `,"prompt_tokens_details":{`...), "cached_tokens", hit), '}')
	b = append(field(append(b, `,"completion_tokens_details":{`...), "reasoning_tokens", reasoning), '}')
	b = field(append(b, ','), "prompt_cache_hit_tokens", hit)
	b = field(append(b, ','), "prompt_cache_miss_tokens", prompt-hit)
	return append(b, '}')
}
