package lossless_test

import (
	"errors"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
)

func TestText(t *testing.T) {
	for in, want := range map[string]lossless.Text{
		`"a"`: "a", `"\ud800"`: "\xed\xa0\x80", `"\ud83d\ude00"`: "\U0001F600", `"\u0000\u2028"`: "\x00\u2028", "\"\xff\"": "\xed\xb3\xbf", `null`: "kept",
	} {
		got := lossless.Text("kept")
		if err := lossless.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", in, got, err, want)
		}
		b, err := json.Marshal(got, jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))
		if err != nil {
			t.Fatal(err)
		}
		var back lossless.Text
		if err := lossless.Unmarshal(b, &back); err != nil || back != got {
			t.Errorf("%s: written as %s, read back as %q, %v", in, b, back, err)
		}
	}
}

func TestTypes(t *testing.T) {
	skip := func(dec *jsontext.Decoder) error { return dec.SkipValue() }
	for _, in := range []string{`[]`, `"a"`, `1`, `null`, `true`} {
		dec := lossless.NewDecoder([]byte(in))
		if err := lossless.Object(dec, func(string) error { return skip(dec) }); !errors.Is(err, lossless.ErrType) {
			t.Errorf("%s as an object: %v", in, err)
		}
	}
	for _, in := range []string{`{}`, `"a"`, `null`} {
		dec := lossless.NewDecoder([]byte(in))
		if err := lossless.Array(dec, func(int) error { return skip(dec) }); !errors.Is(err, lossless.ErrType) {
			t.Errorf("%s as an array: %v", in, err)
		}
	}
	if _, err := lossless.String(lossless.NewDecoder([]byte(`1`))); !errors.Is(err, lossless.ErrType) {
		t.Errorf("a number as a string: %v", err)
	}
	for _, in := range []string{``, `{`, `{"a"`, `{"a":1,`, `{"a":1]`, `{"a" 1}`, `{a:1}`, `{"a":nul}`} {
		dec := lossless.NewDecoder([]byte(in))
		err := lossless.Object(dec, func(string) error { return skip(dec) })
		if err == nil || errors.Is(err, lossless.ErrType) {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestOrderAndEnd(t *testing.T) {
	in := []byte(` {"b":[1,2],"a":{"x":9007199254740993},"b":"\ud800"} `)
	dec := lossless.NewDecoder(in)
	var got string
	err := lossless.Object(dec, func(name string) error {
		v, err := lossless.Raw(dec)
		got += name + string(v)
		return err
	})
	if err != nil || got != `b[1,2]a{"x":9007199254740993}b"\ud800"` {
		t.Errorf("%s, %v", got, err)
	}
	if err := lossless.End(dec); err != nil {
		t.Errorf("End: %v", err)
	}
	dec = lossless.NewDecoder([]byte(`{} {}`))
	if err := lossless.Object(dec, nil); err != nil {
		t.Fatal(err)
	}
	if lossless.End(dec) == nil {
		t.Error("a second value was not noticed")
	}
}
