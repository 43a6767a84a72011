package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

func TestClipImages(t *testing.T) {
	long := strings.Repeat("iVBORw0KGgo+/AAA", 100)
	for name, c := range map[string]struct {
		body, want string
		clipped    int
	}{
		"none":        {`{"content":"hello"}`, `{"content":"hello"}`, 0},
		"a short one": {`"url":"data:image/png;base64,iVBORw=="`, `"url":"data:image/png;base64,iVBORw=="`, 0},
		"two": {
			`["data:image/png;base64,` + long + `=="},{"data:image/gif;base64,` + long + `"]`,
			`["data:image/png;base64,iVBORw0KGgo+/AAAiVBORw0K...(1602 characters)"},{"data:image/gif;base64,iVBORw0KGgo+/AAAiVBORw0K...(1600 characters)"]`,
			2,
		},
		"cut off":        {`data:image/png;base64,`, `data:image/png;base64,`, 0},
		"other base64":   {`"content":"` + long + `"`, `"content":"` + long + `"`, 0},
		"ends in it":     {`;base64,` + long, `;base64,iVBORw0KGgo+/AAAiVBORw0K...(1600 characters)`, 1},
		"said by a user": {`"data:x;base64,\"` + long + `"`, `"data:x;base64,\"` + long + `"`, 0},
	} {
		body := []byte(c.body)
		got, clipped := clipImages(body)
		if string(got) != c.want || clipped != c.clipped {
			t.Errorf("%s: %d clipped: %s", name, clipped, got)
		}
		if string(body) != c.body {
			t.Errorf("%s: the body was changed: %s", name, body)
		}
	}
	var out, notes bytes.Buffer
	if err := printClipped(&out, &notes, []byte("hello")); err != nil || out.String() != "hello\n" || notes.Len() > 0 {
		t.Errorf("%v: %q, %q", err, &out, &notes)
	}
	if err := printClipped(&out, &notes, []byte(`;base64,`+long)); err != nil || !strings.Contains(notes.String(), "images are cut short (1)") {
		t.Errorf("%v: %q", err, &notes)
	}
}

// TestTerminal: files, pipes and memory get all bytes.
func TestTerminal(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // nothing was written
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // nothing was written
	defer w.Close() //nolint:errcheck // nothing was written
	if isTerminal(new(bytes.Buffer)) || isTerminal(file) || isTerminal(w) {
		t.Error("taken for a terminal")
	}
}

func TestRequestName(t *testing.T) {
	if got := requestName(3, events.PurposeLoop) + " " + requestName(4, events.PurposeTitle); got != "3 4 (title)" {
		t.Error(got)
	}
	if got := stepName(0, 0) + " " + stepName(2, 0) + " " + stepName(2, 3); got != "- 2.0 2.3" {
		t.Error(got)
	}
}
