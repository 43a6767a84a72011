package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/pkg/events"
)

// parseOptions returns what the flags of session configure say.
func parseOptions(t *testing.T, args ...string) (events.Options, error) {
	t.Helper()
	var o optionFlags
	cmd := &cobra.Command{Use: "x"}
	o.flags(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return o.changed(cmd)
}

// TestOptionsOfBytes gives flags bytes that are not UTF-8: where any text may stand they are kept, and names are refused.
func TestOptionsOfBytes(t *testing.T) {
	const bytes = "\xff\xc3"
	text := events.TextFromBytes([]byte(bytes))
	got, err := parseOptions(t, "--system", bytes, "--stop", bytes, "--stop", "b")
	if err != nil || got.System != text || !slices.Equal(got.Stop, []string{text, "b"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, flag := range []string{"--provider", "--model", "--effort", "--tools"} {
		if _, err := parseOptions(t, flag, bytes); err == nil || !strings.HasPrefix(err.Error(), flag+` "\xff\xc3" is not UTF-8`) {
			t.Errorf("%s: %v", flag, err)
		}
	}
	labels, err := parseLabels([]string{"b=" + bytes, "a=x=y", "c="})
	if want := []events.Label{{Name: "a", Value: "x=y"}, {Name: "b", Value: text}, {Name: "c"}}; err != nil || !slices.Equal(labels, want) {
		t.Errorf("%q, %v", labels, err)
	}
	if _, err := parseLabels([]string{bytes + "=x"}); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("a label's name: %v", err)
	}
}

func TestOptionsChanged(t *testing.T) {
	for _, args := range [][]string{
		{"--provider", "p"},
		{"--model", "m"},
		{"--effort", "low"},
		{"--system", "s"},
		{"--max-tokens", "1"},
		{"--temperature", "0"},
		{"--stop", "s"},
		{"--max-steps", "1"},
		{"--tools", "a,b"},
	} {
		if _, err := parseOptions(t, args...); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parseOptions(t); err == nil {
		t.Error("no option is accepted as a change")
	}
}
