package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/pkg/events"
)

// optionFlags are the flags for a session's options.
type optionFlags struct {
	provider, model, effort, system, systemFile string
	temperature                                 float64
	maxTokens, maxSteps                         int64
	stop, tools                                 []string
}

func (o *optionFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.provider, "provider", "", "model provider")
	f.StringVar(&o.model, "model", "", "model")
	f.StringVar(&o.effort, "effort", "", "reasoning effort, such as off, low, high or max")
	f.StringVar(&o.system, "system", "", "system prompt")
	f.StringVar(&o.systemFile, "system-file", "", "file that holds the system prompt; - for standard input")
	f.Int64Var(&o.maxTokens, "max-tokens", 0, "limit of an answer in tokens")
	f.Int64Var(&o.maxSteps, "max-steps", 0, "limit of a turn in steps; the worker's own when absent")
	f.Float64Var(&o.temperature, "temperature", 0, "sampling temperature")
	f.StringArrayVar(&o.stop, "stop", nil, "text at which an answer stops; may be repeated")
	f.StringSliceVar(&o.tools, "tools", nil, "names of the tools offered; all when absent")
	cmd.MarkFlagsMutuallyExclusive("system", "system-file")
}

// options returns what the flags say.
func (o *optionFlags) options(cmd *cobra.Command) (events.Options, error) {
	out := events.Options{
		Provider: o.provider, Model: o.model, ReasoningEffort: o.effort, MaxTokens: o.maxTokens, MaxSteps: o.maxSteps, Tools: o.tools,
		System: events.TextFromBytes([]byte(o.system)),
	}
	if o.maxTokens < 0 {
		return out, fmt.Errorf("--max-tokens %d is negative: want the limit of an answer in tokens", o.maxTokens)
	}
	if o.maxSteps < 0 {
		return out, fmt.Errorf("--max-steps %d is negative: want the limit of a turn in steps", o.maxSteps)
	}
	for _, s := range o.stop {
		out.Stop = append(out.Stop, events.TextFromBytes([]byte(s)))
	}
	if o.systemFile != "" {
		text, err := readText(cmd, o.systemFile)
		if err != nil {
			return out, fmt.Errorf("--system-file: %w: give a file that can be read, or - for standard input", err)
		}
		out.System = text
	}
	if cmd.Flags().Changed("temperature") {
		n, err := events.NewNumber(o.temperature)
		if err != nil {
			return out, fmt.Errorf("--temperature: %w: want a number such as 0.7", err)
		}
		out.Temperature = n
	}
	return out, o.check(cmd, &out)
}

// check refuses names that are no text, and empty values: they would leave in force what they seem to take away.
func (o *optionFlags) check(cmd *cobra.Command, out *events.Options) error {
	for _, f := range []struct {
		flag   string
		name   bool // of something: never a text of any bytes
		empty  bool
		values []string
	}{
		{"provider", true, o.provider == "", []string{o.provider}},
		{"model", true, o.model == "", []string{o.model}},
		{"effort", true, o.effort == "", []string{o.effort}},
		{"tools", true, len(o.tools) == 0, o.tools},
		{"system", false, o.system == "", nil},
		{"system-file", false, out.System == "", nil},
		{"stop", false, len(o.stop) == 0, o.stop},
		{"max-tokens", false, o.maxTokens == 0, nil},
		{"max-steps", false, o.maxSteps == 0, nil},
	} {
		if !cmd.Flags().Changed(f.flag) {
			continue
		}
		empty := f.empty
		for _, v := range f.values {
			if f.name && !utf8.ValidString(v) {
				return fmt.Errorf("--%s %q is not UTF-8: want a name", f.flag, v)
			}
			empty = empty || v == ""
		}
		if empty {
			return fmt.Errorf("--%s without a value: an option cannot be unset yet: give a value, or leave the flag out", f.flag)
		}
	}
	return nil
}

var errNothingToChange = errors.New("nothing to change: give at least one option")

// changed returns what the flags say, of which there must be one.
func (o *optionFlags) changed(cmd *cobra.Command) (events.Options, error) {
	out, err := o.options(cmd)
	if err != nil {
		return out, err
	}
	for _, flag := range []string{"provider", "model", "effort", "system", "system-file", "max-tokens", "max-steps", "temperature", "stop", "tools"} {
		if cmd.Flags().Changed(flag) {
			return out, nil
		}
	}
	return out, errNothingToChange
}

func parseLabels(list []string) ([]events.Label, error) {
	labels := make([]events.Label, 0, len(list))
	seen := make(map[string]bool, len(list))
	for _, l := range list {
		name, value, ok := strings.Cut(l, "=")
		switch {
		case !ok || name == "" || !utf8.ValidString(name):
			return nil, fmt.Errorf("--label %q: want NAME=VALUE, the name in UTF-8", l)
		case seen[name]:
			return nil, fmt.Errorf("--label %q is given twice: each name has one value", name)
		}
		seen[name] = true
		labels = append(labels, events.Label{Name: name, Value: events.TextFromBytes([]byte(value))})
	}
	return events.SortLabels(labels), nil
}
