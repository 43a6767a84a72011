package codec_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
)

func TestPointer(t *testing.T) {
	for _, c := range []struct {
		body string // the byte meant stands behind the mark, which is taken out
		want string
	}{
		{`^{"a":1}`, ""},
		{`{^"a":1}`, "/a"},
		{`{"^a":1}`, "/a"}, // inside the name
		{`{"a^":1}`, "/a"},
		{`{"a"^:1}`, "/a"},
		{`{"a":^1}`, "/a"},
		{`{"a":1^}`, ""},
		{`{"a":1}^`, ""}, // the end
		{`{"a":1^,"b":2}`, "/b"},
		{`{"a":^[1]}`, "/a"},
		{`{"a":[^1]}`, "/a/0"},
		{`{"a":[1^,2]}`, "/a/1"},
		{`{"a":[1,^2]}`, "/a/1"},
		{`{"a":[1,2^]}`, "/a"},
		{`{"a":[^]}`, "/a"},
		{`{"a":{^}}`, "/a"},
		{`{"a":{"b":[0,{"c":"x^y"}]}}`, "/a/b/1/c"},
		{`{"a/b":^1}`, "/a~1b"},
		{`{"a~b":^1}`, "/a~0b"},
		{`{"~1/":{"":[^1]}}`, "/~01~1//0"},
		{`{"":^1}`, "/"},
		{`{"\u0061\n":^1}`, "/a\n"},
		{`{"a":1,"a":^2}`, "/a"}, // a name twice
		{`{"a":"x\ud83dy^z","b":1}`, "/a"},
		{`{"a":"x\ud83d\ude00^"}`, "/a"},
		{`{"\ude00":^1}`, "/\ufffd"}, // a pointer is Unicode
		{`["a", ^ "b"]`, "/1"},
		{`^"scalar"`, ""},
		{`"sca^lar"`, ""},
		{"{\"a\":\"\xff^\",\"b\":1}", "/a"},
		{``, ""},
		{`^`, ""},
		{`^no`, ""},
		{`{"a":1,"b":{"c":^`, "/b/c"}, // cut off
		{`{"a":1,"b":"cut of^f`, "/b"},
		{`{"a":1,"b":nothing^`, "/b"},
		{`{"a":1,"b":2 3^}`, "/b"},
		{`{"a":1} {"b":^2}`, "/b"},
	} {
		body, _, _ := strings.Cut(c.body, "^")
		offset := int64(len(body))
		body = strings.Replace(c.body, "^", "", 1)
		if got := codec.Pointer([]byte(body), offset); got != c.want {
			t.Errorf("%s: %q, want %q", c.body, got, c.want)
		}
	}
	for _, offset := range []int64{-1, -1 << 63} {
		if got := codec.Pointer([]byte(`{"a":1}`), offset); got != "" {
			t.Errorf("offset %d: %q", offset, got)
		}
	}
	if got := codec.Pointer([]byte(`{"a":1}`), 1<<62); got != "" {
		t.Errorf("far behind the end: %q", got)
	}
}

// owners returns, for each byte of a JSON text without white space, the pointer of what it belongs to.
type owners struct {
	in  string
	out []string
}

func (o *owners) take(n int, pointer string) {
	for range n {
		o.out = append(o.out, pointer)
	}
}

func (o *owners) rest() string { return o.in[len(o.out):] }

// scalar returns the length of the string, number or word at the start of the rest.
func (o *owners) scalar() int {
	s := o.rest()
	if s[0] != '"' {
		return strings.IndexAny(s+",", ",]}")
	}
	for i := 1; ; i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

func (o *owners) value(pointer string) {
	open := o.rest()[0]
	if open != '{' && open != '[' {
		o.take(o.scalar(), pointer)
		return
	}
	o.take(1, pointer)
	for i := 0; !strings.ContainsAny(o.rest()[:1], "]}"); i++ {
		comma := 0
		if i > 0 {
			comma = 1
		}
		name, n := jsontext.Pointer(pointer), comma
		if open == '[' {
			name = name.AppendToken(jsontext.Int(int64(i)).String())
		} else {
			var end int
			for k := comma + 1; ; k++ {
				if c := o.rest()[k]; c == '\\' {
					k++
				} else if c == '"' {
					end = k + 1
					break
				}
			}
			text, _ := jsontext.AppendUnquote(nil, o.rest()[comma:end]) // a lone surrogate gives U+FFFD and an error
			name, n = name.AppendToken(string(text)), end+1
		}
		o.take(n, string(name))
		o.value(string(name))
	}
	o.take(1, pointer)
}

// TestPointerOfBodies holds the pointer of every byte of random bodies against a naive reading.
func TestPointerOfBodies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, src := requests(t)
		if len(all) == 0 {
			return
		}
		r := all[rapid.IntRange(0, len(all)-1).Draw(t, "request")]
		h := &r.Header
		if tools := dumbTools(h, src); len(tools) > 0 { // schemas may hold white space
			h.ToolsObject.Digest, h.ToolsObject.Bytes, h.ToolsObject.MediaType = [32]byte{}, 0, ""
			h.Tools = []events.Tool{{Name: "a/b", Parameters: `{"~":[{"a/b":{}},[],{"":null}]}`}}
		}
		body := build(t, newBuilder(t, codec.Options{}), &r, src)
		o := owners{in: string(body.Bytes())}
		o.value("")
		if len(o.out) != len(o.in) {
			t.Fatalf("read %d bytes of %d", len(o.out), len(o.in))
		}
		for i, want := range o.out {
			if got := codec.Pointer(body.Bytes(), int64(i)); got != want {
				t.Fatalf("byte %d of %s: %q, want %q", i, o.in, got, want)
			}
		}
	})
}

func FuzzPointer(f *testing.F) {
	for _, s := range []string{``, `{"a":[1,{"b":"\ud83d"}]}`, `[[[`, `{"a~/":1`, `{"a":1}{`, "\xff", `"\u`, `{"a" "b"}`} {
		f.Add([]byte(s), int64(len(s)/2))
	}
	f.Fuzz(func(t *testing.T, body []byte, offset int64) {
		p := codec.Pointer(body, offset)
		if !jsontext.Pointer(p).IsValid() {
			t.Errorf("%q is no JSON pointer", p)
		}
		if whole := offset < 0 || offset >= int64(len(body)) && jsontext.Value(body).IsValid(); whole && p != "" {
			t.Errorf("offset %d is outside, the pointer is %q", offset, p)
		}
	})
}
