package events_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestInputRoundTrip(t *testing.T) {
	for _, kind := range eventstest.InputKinds() {
		t.Run(string(kind), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in := eventstest.InputOf(kind).Draw(t, "input")
				b, err := events.EncodeInput(&in)
				if err != nil {
					t.Fatal(err)
				}
				if !json.Valid(b) {
					t.Fatalf("not JSON: %s", b)
				}
				got, err := events.DecodeInput(b)
				if err != nil {
					t.Fatalf("%v: %s", err, b)
				}
				if diff := cmp.Diff(in, got, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("decode(encode(x)) != x (-x +got):\n%s", diff)
				}
				again, err := events.EncodeInput(&got)
				if err != nil || !bytes.Equal(again, b) {
					t.Fatalf("encode(decode(b)) != b: %v", err)
				}
			})
		})
	}
}

func TestGeneratorsKnowEveryInputKind(t *testing.T) {
	var got []string
	for _, kind := range eventstest.InputKinds() {
		got = append(got, string(kind))
	}
	want := constants(t, "Input")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("eventstest generates %v, the package knows %v", got, want)
	}
}

// canonicalInputOrRefused checks that DecodeInput accepts b only if b is the canonical encoding of what it returns.
func canonicalInputOrRefused(t testing.TB, b []byte) (in events.Input, accepted bool) {
	t.Helper()
	in, err := events.DecodeInput(b)
	if err != nil {
		return in, false
	}
	again, err := events.EncodeInput(&in)
	if err != nil || !bytes.Equal(again, b) {
		t.Fatalf("decoded, but is not canonical: %v\n%q\n%q", err, b, again)
	}
	return in, true
}

// TestEveryByteOfInputs changes every byte of every sample to values that matter, deletes it, and doubles it. In a
// small input with an image it tries every value.
func TestEveryByteOfInputs(t *testing.T) {
	every := make([]byte, 0, 256)
	for c := range 256 {
		every = append(every, byte(c))
	}
	all := sampleInputs()
	small, err := events.DecodeInput([]byte(inputPayload("inject", `,"content":[`+imageOf("BA")+`],"attachments":["QkE="]`)))
	if err != nil {
		t.Fatal(err)
	}
	all["small"] = small
	refused, accepted := 0, 0
	for name, in := range all {
		b := encodeInput(t, in)
		check := func(m []byte) {
			got, ok := canonicalInputOrRefused(t, m)
			switch {
			case !ok:
				refused++
			case cmp.Equal(in, got, cmpopts.EquateEmpty()):
				t.Fatalf("%s: two encodings of one input:\n%q\n%q", name, b, m)
			default:
				accepted++
			}
		}
		for i := range b {
			values := []byte{b[i] ^ 1, b[i] ^ 0x20, b[i] ^ 0x80, 0, ' ', '"', '\\', '0', '9', ',', '}', 'F', '=', '/'}
			if name == "small" {
				values = every
			}
			m := bytes.Clone(b)
			for _, m[i] = range values {
				if m[i] != b[i] {
					check(m)
				}
			}
			check(slices.Delete(bytes.Clone(b), i, i+1))
			if i == 0 || b[i] != b[i-1] {
				check(slices.Insert(bytes.Clone(b), i, b[i]))
			}
			if _, err := events.DecodeInput(b[:i]); err == nil {
				t.Fatalf("%s: an input cut at byte %d was accepted", name, i)
			}
		}
	}
	if accepted == 0 || refused < accepted {
		t.Errorf("%d changes accepted, %d refused: the test does not test what it should", accepted, refused)
	}
}

func TestSingleByteChangeOfInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := eventstest.Input().Draw(t, "input")
		b, err := events.EncodeInput(&in)
		if err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		old := b[i]
		b[i] = rapid.Byte().Filter(func(c byte) bool { return c != old }).Draw(t, "byte")
		got, err := events.DecodeInput(b)
		if err != nil {
			return
		}
		again, err := events.EncodeInput(&got)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("decoded, but is not canonical: %v\n%q\n%q", err, b, again)
		}
		if cmp.Equal(in, got, cmpopts.EquateEmpty()) {
			t.Fatalf("two encodings of one input:\n%q", b)
		}
	})
}

func TestDecodeInputSharesNothing(t *testing.T) {
	for name, in := range sampleInputs() {
		b := encodeInput(t, in)
		got, err := events.DecodeInput(b)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] = 'x'
		}
		for i := range got.Attachments { // not even with the input's own strings
			clear(got.Attachments[i])
			got.Attachments[i] = in.Attachments[i]
		}
		if diff := cmp.Diff(in, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s changed with the payload or an attachment:\n%s", name, diff)
		}
	}
}

// TestEncodeInputLosesNothing gives an input of one kind the fields of another: what its encoding has no place for
// must be refused and not dropped.
func TestEncodeInputLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, other := eventstest.Input().Draw(t, "input"), eventstest.Input().Draw(t, "other")
		other.Kind, other.Open = in.Kind, in.Open
		b, err := events.EncodeInput(&other)
		if err != nil {
			return
		}
		got, err := events.DecodeInput(b)
		if err != nil || !cmp.Equal(other, got, cmpopts.EquateEmpty()) {
			t.Fatalf("lost in the encoding: %v\n%s", err, cmp.Diff(other, got, cmpopts.EquateEmpty()))
		}
	})
}

// inputPayload returns the bytes of an input with the given rest: what follows "kind".
func inputPayload(kind, rest string) string {
	return fmt.Sprintf(`{"v":1,"id":"%s","time":0,"kind":"%s"%s}`, sampleID, kind, rest)
}

// imageOf returns the block of an image whose bytes are data.
func imageOf(data string) string {
	return fmt.Sprintf(`{"type":"image","object":{"sha256":"%s","bytes":%d,"mediaType":"image/gif"},"width":1,"height":1}`,
		objects.Sum([]byte(data)), len(data))
}

func TestDecodeInputRefuses(t *testing.T) {
	in := inputPayload
	text := `,"content":[{"type":"text","text":""}]`
	parent := `,"parent":{"id":"` + string(sampleID) + `"`
	for _, good := range []string{
		in("close", `,"reason":""`), in("prompt", text), in("configure", ``), in("steer", text), in("inject", `,"open":true`+text),
		in("cancel", `,"cause":""`), in("cancel", `,"cause":"user","keepQueue":true`), in("compact", ``),
		in("fork", `,"open":true`+parent+`}`), in("fork", `,"open":true`+parent+`,"seq":7},"options":{"maxSteps":1},"cwd":"/"`),
	} {
		if _, ok := canonicalInputOrRefused(t, []byte(good)); !ok {
			t.Fatal(good)
		}
	}
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"version":             {strings.Replace(in("close", `,"reason":""`), `"v":1`, `"v":2`, 1), events.ErrVersion},
		"kind":                {in("shout", `,"reason":""`), events.ErrInvalid},
		"no content":          {in("prompt", `,"content":[]`), events.ErrInvalid},
		"no words to steer":   {in("steer", `,"content":[]`), events.ErrInvalid},
		"nothing to inject":   {in("inject", ``), events.ErrSyntax},
		"not text":            {in("prompt", `,"content":[{"type":"reasoning","text":""}]`), events.ErrInvalid},
		"result":              {in("steer", `,"content":[{"type":"tool-result","toolCallId":"c","content":[],"isError":false}]`), events.ErrInvalid},
		"trailing bytes":      {in("configure", ``) + " ", events.ErrSyntax},
		"other's field":       {in("configure", `,"reason":"x"`), events.ErrSyntax},
		"steer with options":  {in("steer", text+`,"options":{"model":"m"}`), events.ErrSyntax},
		"inject with cwd":     {in("inject", text+`,"cwd":"/"`), events.ErrSyntax},
		"compact with cause":  {in("compact", `,"cause":""`), events.ErrSyntax},
		"cancel, no cause":    {in("cancel", ``), events.ErrSyntax},
		"cancel, keeps not":   {in("cancel", `,"cause":"","keepQueue":false`), events.ErrSyntax},
		"cut":                 {`{"v":1,"id":"`, events.ErrSyntax},
		"id":                  {strings.Replace(in("configure", ``), "01J", "O1J", 1), events.ErrInvalid},
		"labels":              {in("prompt", text+`,"labels":[{"name":"b","value":""},{"name":"a","value":""}]`), events.ErrInvalid},
		"fork not open":       {in("fork", parent+`}`), events.ErrInvalid},
		"fork of nothing":     {in("fork", `,"open":true`), events.ErrSyntax},
		"fork of no id":       {in("fork", `,"open":true,"parent":{"id":""}`), events.ErrInvalid},
		"fork at 0":           {in("fork", `,"open":true`+parent+`,"seq":0}`), events.ErrSyntax},
		"fork with content":   {in("fork", `,"open":true`+text+parent+`}`), events.ErrSyntax},
		"fork's labels twice": {in("fork", `,"open":true`+parent+`},"labels":[{"name":"a","value":""},{"name":"a","value":""}]`), events.ErrInvalid},
	} {
		if got, err := events.DecodeInput([]byte(c.payload)); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, got, err, c.want)
		}
	}
}

func TestDecodeInputRefusesAttachments(t *testing.T) {
	shown := func(blocks, attachments string) string {
		return inputPayload("prompt", `,"content":[`+blocks+`]`+attachments)
	}
	b, text := imageOf("B"), `{"type":"text","text":""}`
	for _, good := range []string{
		shown(b, `,"attachments":["Qg=="]`), shown(text+`,`+b+`,`+text+`,`+imageOf("BA"), `,"attachments":["Qg==","QkE="]`),
		shown(imageOf("\xfb\xff"), `,"attachments":["+/8="]`), shown(imageOf(""), `,"attachments":[""]`),
	} {
		if _, ok := canonicalInputOrRefused(t, []byte(good)); !ok {
			t.Fatal(good)
		}
	}
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"none":                {shown(b, ``), events.ErrInvalid},
		"list empty":          {shown(text, `,"attachments":[]`), events.ErrSyntax},
		"of no image":         {shown(text, `,"attachments":["Qg=="]`), events.ErrInvalid},
		"too many":            {shown(b, `,"attachments":["Qg==","Qg=="]`), events.ErrInvalid},
		"too few":             {shown(b+`,`+b, `,"attachments":["Qg=="]`), events.ErrInvalid},
		"swapped":             {shown(b+`,`+imageOf("A"), `,"attachments":["QQ==","Qg=="]`), events.ErrInvalid},
		"other bytes":         {shown(b, `,"attachments":["QQ=="]`), events.ErrInvalid},
		"longer":              {shown(b, `,"attachments":["QkE="]`), events.ErrInvalid},
		"much longer":         {shown(b, `,"attachments":["QkFCQUJB"]`), events.ErrInvalid},
		"shorter":             {shown(b, `,"attachments":[""]`), events.ErrInvalid},
		"claimed length":      {shown(strings.Replace(b, `"bytes":1`, `"bytes":2`, 1), `,"attachments":["Qg=="]`), events.ErrInvalid},
		"claimed 1 GiB":       {shown(strings.Replace(b, `"bytes":1`, `"bytes":1073741824`, 1), `,"attachments":["Qg=="]`), events.ErrInvalid},
		"trailing bits":       {shown(b, `,"attachments":["Qh=="]`), events.ErrSyntax},
		"trailing bits of 2":  {shown(imageOf("BA"), `,"attachments":["QkF="]`), events.ErrSyntax},
		"without padding":     {shown(b, `,"attachments":["Qg"]`), events.ErrInvalid},
		"half of the padding": {shown(b, `,"attachments":["Qg="]`), events.ErrInvalid},
		"padding of 3":        {shown(b, `,"attachments":["Q==="]`), events.ErrSyntax},
		"padding inside":      {shown(b, `,"attachments":["Q=g="]`), events.ErrSyntax},
		"URL alphabet":        {shown(imageOf("\xfb\xff"), `,"attachments":["-_8="]`), events.ErrSyntax},
		"line end inside":     {shown(imageOf("BABA"), `,"attachments":["QkFC\nQQ="]`), events.ErrSyntax},
		"only line ends":      {shown(b, `,"attachments":["\n\r\n\r"]`), events.ErrSyntax},
		"space":               {shown(b, `,"attachments":["Qg ="]`), events.ErrSyntax},
		"escaped":             {shown(b, `,"attachments":["\u0051g=="]`), events.ErrSyntax},
		"escaped slash":       {shown(imageOf("\xfb\xff"), `,"attachments":["+\/8="]`), events.ErrSyntax},
		"no string":           {shown(b, `,"attachments":[66]`), events.ErrSyntax},
		"null":                {shown(b, `,"attachments":null`), events.ErrSyntax},
		"before the content":  {inputPayload("prompt", `,"attachments":["Qg=="],"content":[`+b+`]`), events.ErrSyntax},
	} {
		if got, err := events.DecodeInput([]byte(c.payload)); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, got, err, c.want)
		}
	}
}

func TestEncodeInputRefuses(t *testing.T) {
	text, image := []events.Block{events.Text("x")}, []events.Block{sampleImageBlock("")}
	parent := events.ForkPoint{ID: sampleID}
	for name, in := range map[string]events.Input{
		"close with content":     {Kind: events.InputClose, Content: text},
		"close with options":     {Kind: events.InputClose, Options: events.Options{Model: "m"}},
		"configure with cwd":     {Kind: events.InputConfigure, Cwd: "/"},
		"prompt with reason":     {Kind: events.InputPrompt, Content: text, Reason: "r"},
		"prompt with a parent":   {Kind: events.InputPrompt, Content: text, Parent: parent},
		"prompt without words":   {Kind: events.InputPrompt},
		"steer without words":    {Kind: events.InputSteer},
		"steer with options":     {Kind: events.InputSteer, Content: text, Options: events.Options{MaxSteps: 1}},
		"inject with labels":     {Kind: events.InputInject, Content: text, Labels: []events.Label{{Name: "a"}}},
		"inject to keep":         {Kind: events.InputInject, Content: text, KeepQueue: true},
		"cancel with words":      {Kind: events.InputCancel, Content: text},
		"compact with cause":     {Kind: events.InputCompact, Cause: "x"},
		"compact with options":   {Kind: events.InputCompact, Options: events.Options{Model: "m"}},
		"compact with an image":  {Kind: events.InputCompact, Attachments: [][]byte{sampleImage()}},
		"fork not open":          {Kind: events.InputFork, Parent: parent},
		"fork of nothing":        {Kind: events.InputFork, Open: true},
		"fork with words":        {Kind: events.InputFork, Open: true, Parent: parent, Content: text},
		"image without bytes":    {Kind: events.InputPrompt, Content: image},
		"bytes without an image": {Kind: events.InputPrompt, Content: text, Attachments: [][]byte{sampleImage()}},
		"image of other bytes":   {Kind: events.InputPrompt, Content: image, Attachments: [][]byte{[]byte("other")}},
		"no kind":                {},
	} {
		in.ID = sampleID
		if b, err := events.EncodeInput(&in); !errors.Is(err, events.ErrInvalid) || b != nil {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
	if b, err := events.EncodeInput(&events.Input{Kind: events.InputCompact}); !errors.Is(err, events.ErrInvalid) || b != nil {
		t.Errorf("no id: %s, %v", b, err)
	}
}

// TestLargestAttachment fills an input to the last byte that a message may have, and then one step beyond.
func TestLargestAttachment(t *testing.T) {
	input := func(size int) *events.Input {
		data := make([]byte, size)
		image := sampleImageBlock("")
		image.Object.Digest, image.Object.Bytes = objects.Sum(data), int64(size)
		return &events.Input{ID: sampleID, Kind: events.InputInject, Content: []events.Block{image}, Attachments: [][]byte{data}}
	}
	around := len(encodeInput(t, *input(1))) - 4 + len("50000000") - len("1")
	most := (events.MaxEventBytes - around) / 4 * 3
	b, err := events.EncodeInput(input(most))
	if err != nil || len(b) != around+base64.StdEncoding.EncodedLen(most) {
		t.Fatalf("%d bytes: %v", len(b), err)
	}
	got, err := events.DecodeInput(b)
	if err != nil || len(got.Attachments) != 1 || len(got.Attachments[0]) != most {
		t.Fatalf("%d attachments: %v", len(got.Attachments), err)
	}
	if b, err := events.EncodeInput(input(most + 1)); !errors.Is(err, events.ErrTooLarge) || b != nil {
		t.Errorf("one byte more: %d bytes, %v", len(b), err)
	}
	far := input(0)
	far.Attachments[0] = make([]byte, events.MaxEventBytes) // too long to be looked at: its digest is not the image's
	if b, err := events.EncodeInput(far); !errors.Is(err, events.ErrTooLarge) || b != nil {
		t.Errorf("far more: %d bytes, %v", len(b), err)
	}
}
