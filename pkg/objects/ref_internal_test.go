package objects

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const helloHex = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"

func TestDigestText(t *testing.T) {
	d := Sum([]byte("hello\n"))
	if got := d.String(); got != helloHex {
		t.Errorf("String() = %s, want %s", got, helloHex)
	}
	if got := string(d.AppendHex([]byte("x."))); got != "x."+helloHex {
		t.Errorf("AppendHex = %s", got)
	}
	if got, err := ParseDigest(helloHex); err != nil || got != d {
		t.Errorf("ParseDigest = %v, %v", got, err)
	}
	for _, bad := range []string{
		"", "0", helloHex[:63], helloHex + "0", strings.ToUpper(helloHex),
		" " + helloHex[1:], helloHex[:63] + "g", helloHex[:62] + "\u00e9", helloHex[:63] + "\x00",
	} {
		if got, err := ParseDigest(bad); !errors.Is(err, ErrInvalidRef) || got != (Digest{}) {
			t.Errorf("ParseDigest(%q) = %v, %v", bad, got, err)
		}
	}
}

func TestRefJSON(t *testing.T) {
	ref := Ref{Digest: Sum([]byte("hello\n")), Bytes: 6, MediaType: "text/plain"}
	want := `{"sha256":"` + helloHex + `","bytes":6,"mediaType":"text/plain"}`
	got, err := json.Marshal(ref)
	if err != nil || string(got) != want {
		t.Fatalf("marshal: %s, %v", got, err)
	}
	var back Ref
	if err := json.Unmarshal(got, &back); err != nil || back != ref {
		t.Errorf("unmarshal: %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"sha256":"`+strings.ToUpper(helloHex)+`"}`), &back); !errors.Is(err, ErrInvalidRef) {
		t.Errorf("unmarshal of an upper-case digest: %v", err)
	}
}

func TestRefValidate(t *testing.T) {
	tests := []struct {
		bytes     int64
		mediaType string
		want      error
	}{
		{0, "text/plain", nil},
		{MaxBytes, "application/vnd.a-b.c+json", nil},
		{1, "image/svg+xml", nil},
		{1, "a/b", nil},
		{1, "1a/2b", nil},
		{1, "TEXT/Plain", nil},
		{1, "a/" + strings.Repeat("b", MaxMediaTypeLen-2), nil},
		{1, "a/" + strings.Repeat("b", MaxMediaTypeLen-1), ErrInvalidRef},
		{-1, "text/plain", ErrInvalidRef},
		{MaxBytes + 1, "text/plain", ErrTooLarge},
		{1, "", ErrInvalidRef},
		{1, "/", ErrInvalidRef},
		{1, "text", ErrInvalidRef},
		{1, "text/", ErrInvalidRef},
		{1, "/plain", ErrInvalidRef},
		{1, "text/pl ain", ErrInvalidRef},
		{1, "text/plain;q=1", ErrInvalidRef},
		{1, "te\u017ft/plain", ErrInvalidRef},
		{1, "text/plain\n", ErrInvalidRef},
		{1, "text/pl\x00ain", ErrInvalidRef},
		{1, "text/*", ErrInvalidRef},
		{1, "-text/plain", ErrInvalidRef},
		{1, "text/+xml", ErrInvalidRef},
		{1, "a/b/c", ErrInvalidRef},
	}
	for _, test := range tests {
		err := Ref{Bytes: test.bytes, MediaType: test.mediaType}.Validate()
		if !errors.Is(err, test.want) {
			t.Errorf("%d bytes of %q: %v, want %v", test.bytes, test.mediaType, err, test.want)
		}
	}
}

func TestDigestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "digest"))
		if got, err := ParseDigest(d.String()); err != nil || got != d {
			t.Fatalf("%v, %v", got, err)
		}
	})
}

func FuzzParseDigest(f *testing.F) {
	f.Add(helloHex)
	f.Add(strings.ToUpper(helloHex))
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDigest(s)
		if err == nil && d.String() != s {
			t.Fatalf("%q parsed to %s", s, d)
		}
	})
}

func FuzzValidateMediaType(f *testing.F) {
	f.Add("text/plain")
	f.Add("a/b/c")
	f.Fuzz(func(t *testing.T, s string) {
		if ValidateMediaType(s) != nil {
			return
		}
		main, sub, ok := strings.Cut(s, "/")
		if !ok || main == "" || sub == "" || strings.ContainsAny(s, " ;,\"\\\r\n") || len(s) > MaxMediaTypeLen {
			t.Fatalf("%q was accepted", s)
		}
		for i := range len(s) {
			if s[i] <= ' ' || s[i] > '~' {
				t.Fatalf("%q was accepted", s)
			}
		}
	})
}
