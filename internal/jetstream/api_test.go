package jetstream_test

import (
	"encoding/json"
	"testing"

	"github.com/refold-dev/refold/internal/jetstream"
)

// FuzzPlainAck compares the fast path with a JSON decoder, wherever it takes an answer at all.
func FuzzPlainAck(f *testing.F) {
	for _, seed := range []string{
		`{"stream":"S","seq":1}`, `{"stream":"S","seq":1,"duplicate":true}`, `{"stream":"S","seq":0}`, `{"stream":"","seq":1}`,
		`{"stream":"a\u0041","seq":2}`, `{"stream":"S","seq":999999999999999999}`, `{"stream":"S","seq":9999999999999999999}`,
		`{"error":{"code":400,"err_code":10071},"stream":"S","seq":0}`, `{"stream":"S","seq":}`, `{"stream":"S", "seq":1}`, ``,
		"{\"stream\":\"\x80\",\"seq\":1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		stream, seq, ok := jetstream.PlainAck(data)
		if !ok {
			return
		}
		var want struct {
			Stream string `json:"stream"`
			Seq    uint64 `json:"seq"`
		}
		if seq == 0 || stream == "" {
			t.Errorf("taken without stream or sequence: %q", data)
		}
		// Leading zeros are no JSON; the server sends none.
		if err := json.Unmarshal(data, &want); err == nil && (want.Seq != seq || want.Stream != stream) {
			t.Errorf("%q: %s %d, a JSON decoder has %s %d", data, stream, seq, want.Stream, want.Seq)
		}
	})
}

func TestPlainAck(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]bool{
		`{"stream":"SESSION_X","seq":12}`:                  true,
		`{"stream":"SESSION_X","seq":12,"duplicate":true}`: false,
		`{"stream":"SESSION_X","seq":0}`:                   false,
		`{"error":{"code":503},"stream":"","seq":0}`:       false,
		`{"stream":"a\u0041","seq":2}`:                     false,
		"{\"stream\":\"\x80\",\"seq\":1}":                  false, // U+FFFD to a JSON decoder
		"{\"stream\":\"\u00e9\",\"seq\":1}":                false,
		"{\"stream\":\"a\tb\",\"seq\":1}":                  false,
		"{\"stream\":\"a\x7f\",\"seq\":1}":                 false,
	} {
		stream, seq, ok := jetstream.PlainAck([]byte(data))
		if ok != want || want && (stream != "SESSION_X" || seq != 12) {
			t.Errorf("%s: %q %d %t, want %t", data, stream, seq, ok, want)
		}
	}
}
