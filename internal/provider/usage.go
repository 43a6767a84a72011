package provider

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/pkg/events"
)

// maxTokenCount is the largest count that is taken at its word; events refuse larger ones.
const maxTokenCount = 1 << 53

// maxRawUsage is the largest usage object in bytes that is kept as it came.
const maxRawUsage = 64 << 10

// count is a number of tokens as a provider reported it.
type count struct {
	n       int64
	given   bool // a number stood there; null is not one
	clamped bool // it was no whole number in [0, maxTokenCount]
}

// orElse returns c if it was given, else d.
func (c count) orElse(d count) count {
	if c.given {
		return c
	}
	return d
}

// readCount reads any value as a count. What is neither number nor null counts as not given, and as clamped.
func readCount(dec *jsontext.Decoder) (count, error) {
	v, err := dec.ReadValue()
	if err != nil {
		return count{}, err
	}
	switch v.Kind() {
	case 'n':
		return count{}, nil
	case '0':
		return parseCount(string(v)), nil
	default:
		return count{clamped: true}, nil
	}
}

func parseCount(s string) count {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 && n <= maxTokenCount {
		return count{n: n, given: true}
	}
	f, err := strconv.ParseFloat(s, 64) // out of range gives an infinity, which is clamped too
	c := count{given: true, clamped: true}
	switch {
	case f >= maxTokenCount:
		c.n = maxTokenCount
	case f > 0:
		c.n = int64(f)
		c.clamped = err != nil || float64(c.n) != f
	case f == 0: // "-0" and "0.0"
		c.clamped = false
	}
	return c
}

// chatUsage is the usage object of chat completions, as it came.
type chatUsage struct {
	prompt, completion    count
	hit, miss             count // prompt_cache_hit_tokens, prompt_cache_miss_tokens
	cached                count // prompt_tokens_details.cached_tokens
	reasoning             count // completion_tokens_details.reasoning_tokens
	raw                   events.RawJSON
	wrongDetails, rawLost bool
}

// parseUsage reads a usage object. The error wraps [lossless.ErrType] when raw is something else.
func parseUsage(raw jsontext.Value) (chatUsage, error) {
	var u chatUsage
	dec := lossless.NewDecoder(raw)
	err := lossless.Object(dec, func(name string) (err error) {
		switch name {
		case "prompt_tokens":
			u.prompt, err = readCount(dec)
		case "completion_tokens":
			u.completion, err = readCount(dec)
		case "prompt_cache_hit_tokens":
			u.hit, err = readCount(dec)
		case "prompt_cache_miss_tokens":
			u.miss, err = readCount(dec)
		case "prompt_tokens_details":
			u.cached, err = readDetail(dec, "cached_tokens", &u.wrongDetails)
		case "completion_tokens_details":
			u.reasoning, err = readDetail(dec, "reasoning_tokens", &u.wrongDetails)
		default:
			err = dec.SkipValue()
		}
		return err
	})
	if err != nil {
		return u, err
	}
	u.raw = events.RawJSON(raw)
	if len(raw) > maxRawUsage || u.raw.Validate() != nil {
		u.raw, u.rawLost = "", true
	}
	return u, nil
}

// readDetail reads the count called name out of an object. wrong is set when there is no object and no null.
func readDetail(dec *jsontext.Decoder, name string, wrong *bool) (count, error) {
	var c count
	switch dec.PeekKind() {
	case '{', 0:
	case 'n':
		return c, dec.SkipValue()
	default:
		*wrong = true
		return c, dec.SkipValue()
	}
	err := lossless.Object(dec, func(n string) (err error) {
		if n == name {
			c, err = readCount(dec)
			return err
		}
		return dec.SkipValue()
	})
	return c, err
}

// over returns u with what it leaves out taken from an earlier report of the same answer: the latest figure counts,
// figures are never added.
func (u chatUsage) over(earlier chatUsage) chatUsage {
	u.prompt = u.prompt.orElse(earlier.prompt)
	u.completion = u.completion.orElse(earlier.completion)
	u.reasoning = u.reasoning.orElse(earlier.reasoning)
	if !u.cached.given && !u.hit.given && !u.miss.given {
		u.cached, u.hit, u.miss = earlier.cached, earlier.hit, earlier.miss
	}
	return u
}

// partial reports whether one of the two figures that a report needs is missing.
func (u chatUsage) partial() bool { return !u.prompt.given || !u.completion.given }

// normalise returns the report as disjoint counts. prompt_tokens includes what was read from the cache; DeepSeek
// does not bill cache writes, so none are derived from the misses. The details win over the counts beside them.
func (u chatUsage) normalise() events.Usage {
	out := events.Usage{OutputTokens: u.completion.n, ReasoningTokens: u.reasoning.n}
	clamped := u.prompt.clamped || u.completion.clamped || u.hit.clamped || u.miss.clamped ||
		u.cached.clamped || u.reasoning.clamped || u.wrongDetails || u.rawLost || !u.completion.given

	read := u.cached.orElse(u.hit)
	total := u.prompt
	switch {
	case !total.given && read.given && u.miss.given:
		total = count{n: read.n + u.miss.n, given: true}
		if total.n > maxTokenCount {
			total.n, clamped = maxTokenCount, true
		}
	case !total.given:
		clamped = true
		total.n = read.n
	case !read.given && u.miss.given: // the misses alone: the rest was read
		read = count{n: max(total.n-u.miss.n, 0), given: true}
		clamped = clamped || u.miss.n > total.n
	case u.hit.given && u.miss.given && u.hit.n+u.miss.n != total.n:
		clamped = true
	}
	if read.n > total.n {
		read.n, clamped = total.n, true
	}
	if out.ReasoningTokens > out.OutputTokens {
		out.ReasoningTokens, clamped = out.OutputTokens, true
	}
	out.InputTokens, out.CacheReadTokens = total.n-read.n, read.n
	out.CacheReported = read.given
	out.Clamped = clamped
	return out
}

// chunk returns the report as a chunk.
func (u chatUsage) chunk() events.Chunk {
	return events.Chunk{Type: events.ChunkUsage, Usage: u.normalise(), RawUsage: u.raw}
}
