package provider

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
)

// chatChunk is what counts of a chat.completion.chunk object. Absent and null are the same: empty.
type chatChunk struct {
	reasoning, content string
	calls              []callDelta
	finish             string
	usage              jsontext.Value
	err                jsontext.Value // of an error object or text that comes in a chunk's place
}

type callDelta struct {
	index          int64
	hasIndex       bool
	id, name, args string
}

// parseChatChunk reads one object. Nothing of it refers to data afterwards.
func parseChatChunk(data []byte) (chatChunk, error) {
	var c chatChunk
	dec := lossless.NewDecoder(data)
	err := lossless.Object(dec, func(name string) error {
		switch name {
		case "choices":
			return c.readChoices(dec)
		case "usage":
			return readRaw(dec, &c.usage)
		case "error":
			return readRaw(dec, &c.err)
		}
		return dec.SkipValue()
	})
	if err == nil {
		err = lossless.End(dec)
	}
	return c, err
}

func readRaw(dec *jsontext.Decoder, dst *jsontext.Value) error {
	if lossless.Null(dec) {
		*dst = nil
		return nil
	}
	v, err := lossless.Raw(dec)
	*dst = v
	return err
}

func readText(dec *jsontext.Decoder, dst *string) error {
	if lossless.Null(dec) {
		*dst = ""
		return nil
	}
	s, err := lossless.String(dec)
	*dst = s
	return err
}

func readInt(dec *jsontext.Decoder) (n int64, given bool, err error) {
	if lossless.Null(dec) {
		return 0, false, nil
	}
	v, err := dec.ReadValue()
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%w: an index that is no integer", lossless.ErrType)
	}
	return n, true, nil
}

// readChoices reads the choices, of which there may be the one that was asked for.
func (c *chatChunk) readChoices(dec *jsontext.Decoder) error {
	if lossless.Null(dec) {
		return nil
	}
	return lossless.Array(dec, func(i int) error {
		if i > 0 {
			return fmt.Errorf("%w: more than one choice, which nobody asked for", lossless.ErrType)
		}
		return lossless.Object(dec, func(name string) error {
			switch name {
			case "index":
				if n, _, err := readInt(dec); err != nil || n != 0 {
					return fmt.Errorf("%w: a choice other than the first, which nobody asked for", lossless.ErrType)
				}
				return nil
			case "delta":
				return c.readDelta(dec)
			case "finish_reason":
				return readText(dec, &c.finish)
			}
			return dec.SkipValue()
		})
	})
}

func (c *chatChunk) readDelta(dec *jsontext.Decoder) error {
	if lossless.Null(dec) {
		return nil
	}
	return lossless.Object(dec, func(name string) error {
		switch name {
		case "content":
			return readText(dec, &c.content)
		case "reasoning_content":
			return readText(dec, &c.reasoning)
		case "tool_calls":
			c.calls = nil
			if lossless.Null(dec) {
				return nil
			}
			return lossless.Array(dec, func(int) error { return c.readCall(dec) })
		}
		return dec.SkipValue()
	})
}

func (c *chatChunk) readCall(dec *jsontext.Decoder) error {
	var call callDelta
	err := lossless.Object(dec, func(name string) (err error) {
		switch name {
		case "index":
			call.index, call.hasIndex, err = readInt(dec)
			return err
		case "id":
			return readText(dec, &call.id)
		case "function":
			return call.readFunction(dec)
		}
		return dec.SkipValue()
	})
	c.calls = append(c.calls, call)
	return err
}

func (c *callDelta) readFunction(dec *jsontext.Decoder) error {
	if lossless.Null(dec) {
		return nil
	}
	return lossless.Object(dec, func(name string) error {
		switch name {
		case "name":
			return readText(dec, &c.name)
		case "arguments":
			return readText(dec, &c.args)
		}
		return dec.SkipValue()
	})
}
