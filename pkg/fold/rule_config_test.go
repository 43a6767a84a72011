package fold_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// opened has a step open in a session with the options.
func opened(o events.Options) *foldtest.Log {
	l := foldtest.New()
	l.Created(o)
	l.Claimed(events.ClaimCreated)
	l.TurnStart()
	l.StepStart()
	return l
}

// wide sets every field of the configuration.
func wide() events.Options {
	return events.Options{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 100, Temperature: "0.5", Stop: []string{"END"}}
}

// wideHeader follows wide.
func wideHeader() events.Header {
	return events.Header{Config: events.Config{
		Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 100, Temperature: "0.5", Stop: []string{"END"},
	}}
}

// tryHeader tries a header with the reason that fits and what extensions are said to have changed.
func tryHeader(l *foldtest.Log, h events.Header, change func(*events.Header), by ...events.ConfigChange) error {
	change(&h)
	reason, _ := l.State.HeaderOwed(&h)
	return l.Try(&events.RequestHeader{Header: h, Reason: reason, ChangedBy: by})
}

func by(fields ...events.ConfigField) events.ConfigChange {
	return events.ConfigChange{Extension: "x", Fields: fields}
}

// otherwise changes one field each.
var otherwise = []struct {
	field  events.ConfigField
	change func(*events.Header)
}{
	{events.ConfigProvider, func(h *events.Header) { h.Config.Provider += "x" }},
	{events.ConfigModel, func(h *events.Header) { h.Config.Model += "x" }},
	{events.ConfigReasoningEffort, func(h *events.Header) {
		h.Config.ReasoningEffort += "x"
		h.AdapterDefaults.ReasoningEffort = false
	}},
	{events.ConfigMaxTokens, func(h *events.Header) {
		h.Config.MaxTokens++
		h.AdapterDefaults.MaxTokens = false
	}},
	{events.ConfigTemperature, func(h *events.Header) { h.Config.Temperature = "1.75" }},
	{events.ConfigStop, func(h *events.Header) { h.Config.Stop = append(slices.Clone(h.Config.Stop), "x") }},
}

// recorded has the header of wide, and its step open.
func recorded() *foldtest.Log {
	l := opened(wide())
	l.Header(wideHeader())
	return l
}

func configCases() []ruleCase {
	var cases []ruleCase
	for _, o := range otherwise {
		cases = append(cases,
			ruleCase{fold.RuleConfig, "the options' " + string(o.field) + " ignored", func() error {
				return tryHeader(opened(wide()), wideHeader(), o.change)
			}},
			ruleCase{fold.RuleConfig, string(o.field) + " changed between steps", func() error {
				return tryHeader(recorded(), wideHeader(), o.change)
			}},
			ruleCase{fold.RuleConfig, string(o.field) + " changed, another field is named", func() error {
				other := events.ConfigStop
				if o.field == other {
					other = events.ConfigModel
				}
				return tryHeader(recorded(), wideHeader(), o.change, by(other))
			}},
			ruleCase{fold.RuleConfig, string(o.field) + " of another instance", func() error {
				l := recorded()
				l.Claimed(events.ClaimTakeover)
				return tryHeader(l, wideHeader(), o.change)
			}},
			ruleCase{fold.RuleConfig, string(o.field) + " configured since", func() error {
				l := opened(events.Options{Provider: "q"})
				l.Header(events.Header{Config: events.Config{Provider: "q", Model: "n"}})
				l.Configured(wide())
				return tryHeader(l, wideHeader(), o.change)
			}},
		)
	}
	narrow := func(h *events.Header) { h.Config.Temperature, h.Config.Stop = "", nil }
	return append(cases,
		ruleCase{fold.RuleConfig, "a field left out", func() error { return tryHeader(recorded(), wideHeader(), narrow) }},
		ruleCase{fold.RuleConfig, "an option marked as filled in", func() error {
			return tryHeader(opened(wide()), wideHeader(), func(h *events.Header) { h.AdapterDefaults.MaxTokens = true })
		}},
		ruleCase{fold.RuleConfig, "what was explicit marked as filled in", func() error {
			return tryHeader(recorded(), wideHeader(), func(h *events.Header) { h.AdapterDefaults.ReasoningEffort = true })
		}},
		ruleCase{fold.RuleConfig, "what was filled in made explicit", func() error {
			l := opened(events.Options{})
			h := wideHeader()
			h.AdapterDefaults.MaxTokens = true
			l.Header(h)
			return tryHeader(l, wideHeader(), func(*events.Header) {})
		}},
		ruleCase{fold.RuleConfig, "an effort not restored by the next instance", func() error {
			l := opened(events.Options{Provider: "p", Model: "m"})
			l.Header(wideHeader())
			l.Claimed(events.ClaimTakeover)
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.Config.ReasoningEffort = "" })
		}},
		ruleCase{fold.RuleConfig, "an effort filled in instead of restored", func() error {
			l := opened(events.Options{})
			l.Header(wideHeader())
			l.Configured(events.Options{Temperature: "0.5"})
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.AdapterDefaults.ReasoningEffort, h.Config.MaxTokens = true, 7 })
		}},
		ruleCase{fold.RuleConfig, "a call with a header from before the options", func() error {
			l := recorded()
			l.Configured(events.Options{Model: "n"})
			return l.Try(l.StreamBody())
		}},
		ruleCase{fold.RuleConfig, "a title with a header from before the options", func() error {
			l := recorded()
			l.Configured(events.Options{MaxTokens: 7})
			return l.Try(l.AuxBody(events.PurposeTitle, events.Region{}))
		}},
		ruleCase{fold.RuleConfig, "a call with the header of an extension that changed another field", func() error {
			l := opened(wide())
			h := wideHeader()
			h.Config.Model = "n"
			l.Header(h)
			l.Configured(events.Options{MaxTokens: 7})
			return l.Try(l.StreamBody())
		}},
		ruleCase{fold.RuleConfig, "an equal header that undoes the options unnamed", func() error {
			l := recorded()
			l.Configured(events.Options{Model: "n"})
			return tryHeader(l, wideHeader(), func(*events.Header) {})
		}},
		ruleCase{fold.RuleConfig, "of a route that nobody serves", func() error {
			l := recorded()
			l.Configured(events.Options{Provider: "nowhere"})
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.Config.Provider = "somewhere" })
		}},
		ruleCase{fold.RuleConfig, "in a fork", func() error {
			l := recorded()
			l.Settle()
			f := l.Fork(int(l.Len()))
			f.Claimed(events.ClaimCreated)
			return tryHeader(f, wideHeader(), func(h *events.Header) { h.Config.MaxTokens++ })
		}},
		ruleCase{fold.RuleConfig, "a call with a header whose extension undid other options", func() error {
			l := opened(wide())
			h := wideHeader()
			h.Config.Model = "n"
			l.Header(h)
			l.Configured(events.Options{Model: "o"})
			return l.Try(l.StreamBody())
		}},
		ruleCase{fold.RuleHeader, "an equal header, recorded behind the options already", func() error {
			l := recorded()
			l.Configured(events.Options{Model: "n"})
			l.Header(wideHeader())
			return l.Try(&events.RequestHeader{Header: wideHeader(), Reason: events.HeaderChange, ChangedBy: []events.ConfigChange{by(events.ConfigModel)}})
		}},
	)
}

func promptCases() []ruleCase {
	prompt := func(o events.Options, change func(*events.Header)) func() error {
		return func() error { return tryHeader(opened(o), foldtest.Header(), change) }
	}
	none := func(*events.Header) {}
	return []ruleCase{
		{fold.RuleConfig, "another system prompt", prompt(events.Options{System: "Be brief."}, none)},
		{fold.RuleConfig, "no system prompt", prompt(events.Options{System: "Be brief."}, func(h *events.Header) { h.System = "" })},
		{fold.RuleConfig, "a system prompt in another object", func() error {
			l := opened(events.Options{System: "Be brief."})
			ref := l.Object([]byte("Be long."), events.TextMediaType)
			return tryHeader(l, foldtest.Header(), func(h *events.Header) { h.System, h.SystemObject = "", ref })
		}},
		{fold.RuleConfig, "another object than the options'", func() error {
			l := foldtest.New()
			return tryHeader(openedWith(l, "Be brief."), foldtest.Header(), func(h *events.Header) { h.System = "Be long." })
		}},
		{fold.RuleConfig, "an object of another length", func() error {
			l := foldtest.New()
			ref := l.Object([]byte("Be brief."), events.TextMediaType)
			l = opened(events.Options{SystemObject: ref})
			return tryHeader(l, foldtest.Header(), func(h *events.Header) {
				h.System, h.SystemObject = "", ref
				h.SystemObject.Bytes++
			})
		}},
		{fold.RuleConfig, "a tool that the options do not name", prompt(events.Options{Tools: []string{"read", "write"}}, none)},
		{fold.RuleConfig, "a system prompt said to be changed", func() error {
			return tryHeader(opened(events.Options{System: "Be brief."}), foldtest.Header(), none, by(events.ConfigFields()...))
		}},
		{fold.RuleConfig, "a call with a system prompt from before the options", func() error {
			l := asked()
			l.Configured(events.Options{System: "Be brief."})
			return l.Try(l.StreamBody())
		}},
		{fold.RuleConfig, "a call with tools from before the options", func() error {
			l := asked()
			l.Configured(events.Options{Tools: []string{"read"}})
			return l.Try(l.StreamBody())
		}},
	}
}

// openedWith has a step open in a session whose options hold the system prompt as an object.
func openedWith(l *foldtest.Log, system string) *foldtest.Log {
	l.Created(events.Options{SystemObject: l.Object([]byte(system), events.TextMediaType)})
	l.Claimed(events.ClaimCreated)
	l.TurnStart()
	l.StepStart()
	return l
}

// TestConfigPermitted holds headers that depart from the options or from what went before, and may.
func TestConfigPermitted(t *testing.T) {
	none := func(*events.Header) {}
	for name, err := range map[string]func() error{
		"what the options leave open": func() error { return tryHeader(opened(events.Options{}), wideHeader(), none) },
		"filled in where it was absent": func() error {
			l := opened(events.Options{})
			l.Header(events.Header{Config: events.Config{Provider: "p", Model: "m"}})
			return tryHeader(l, events.Header{Config: events.Config{Provider: "p", Model: "m"}}, func(h *events.Header) {
				h.Config.ReasoningEffort, h.Config.MaxTokens = "high", 9
				h.AdapterDefaults = events.AdapterDefaults{ReasoningEffort: true, MaxTokens: true}
			})
		},
		"filled in otherwise, or no more": func() error {
			l := opened(events.Options{})
			h := wideHeader()
			h.AdapterDefaults = events.AdapterDefaults{ReasoningEffort: true, MaxTokens: true}
			l.Header(h)
			return tryHeader(l, h, func(h *events.Header) {
				h.Config.MaxTokens, h.Config.ReasoningEffort, h.AdapterDefaults.ReasoningEffort = 7, "", false
			})
		},
		"the worker's own, in another instance": func() error {
			l := opened(events.Options{Model: "m"})
			l.Header(wideHeader())
			l.Claimed(events.ClaimTakeover)
			return tryHeader(l, wideHeader(), func(h *events.Header) {
				h.Config.Temperature, h.Config.MaxTokens, h.Config.Stop, h.Config.ReasoningEffort = "", 0, nil, "max"
			})
		},
		"no effort restored for another model": func() error {
			l := opened(events.Options{Provider: "p"})
			l.Header(wideHeader())
			l.Claimed(events.ClaimTakeover)
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.Config.Model, h.Config.ReasoningEffort = "n", "" })
		},
		"no effort restored for another provider": func() error {
			l := opened(events.Options{Model: "m"})
			l.Header(wideHeader())
			l.Claimed(events.ClaimTakeover)
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.Config.Provider, h.Config.ReasoningEffort = "q", "" })
		},
		"no effort restored where an extension chose the provider": func() error {
			l := opened(events.Options{Model: "m"})
			l.Header(wideHeader())
			l.Claimed(events.ClaimTakeover)
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.Config.ReasoningEffort = "" }, by(events.ConfigProvider))
		},
		"no effort restored where an extension chose the model": func() error {
			l := opened(events.Options{Provider: "p"})
			l.Header(wideHeader())
			l.Claimed(events.ClaimTakeover)
			return tryHeader(l, wideHeader(), func(h *events.Header) { h.Config.ReasoningEffort = "" }, by(events.ConfigModel))
		},
		"a call with a header from before options that it follows": func() error {
			l := recorded()
			l.Configured(events.Options{Model: "m", MaxSteps: 3})
			return l.Try(l.StreamBody())
		},
		"an equal header by which an extension undoes the options": func() error {
			l := recorded()
			l.Configured(events.Options{Model: "n"})
			if err := tryHeader(l, wideHeader(), none, by(events.ConfigModel)); err != nil {
				return err
			}
			l.Header(wideHeader())
			return l.Try(l.StreamBody())
		},
		"an extension's choice stays when nothing changes it": func() error {
			l := opened(wide())
			h := wideHeader()
			h.Config.Model = "n"
			l.Header(h)
			return tryHeader(l, h, func(h *events.Header) { h.System = "More." })
		},
		"the options' system prompt, moved into an object": func() error {
			l := opened(events.Options{System: "Be brief."})
			ref := l.Object([]byte("Be brief."), events.TextMediaType)
			return tryHeader(l, foldtest.Header(), func(h *events.Header) { h.System, h.SystemObject = "", ref })
		},
		"the options' system prompt, inline again": func() error {
			return tryHeader(openedWith(foldtest.New(), "Be brief."), foldtest.Header(), func(h *events.Header) { h.System = "Be brief." })
		},
		"fewer tools than the options name": func() error {
			return tryHeader(opened(events.Options{Tools: []string{"read", "write"}}), foldtest.Header(), func(h *events.Header) { h.Tools = h.Tools[1:] })
		},
		"tools in an object": func() error {
			l := opened(events.Options{Tools: []string{"read"}})
			ref := l.Object([]byte(`[]`), events.ToolsMediaType)
			return tryHeader(l, foldtest.Header(), func(h *events.Header) { h.Tools, h.ToolsObject = nil, ref })
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := err(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, o := range otherwise {
		for what, l := range map[string]*foldtest.Log{"against the options": opened(wide()), "between steps": recorded()} {
			if err := tryHeader(l, wideHeader(), o.change, by(events.ConfigProvider), events.ConfigChange{Extension: "y", Fields: []events.ConfigField{o.field}}); err != nil {
				t.Errorf("%s changed by an extension %s: %v", o.field, what, err)
			}
		}
	}
}

// TestConfigTampered changes one field of each header of a generated log: that is noticed exactly where the log alone says
// what the field is, and no extension is named.
func TestConfigTampered(t *testing.T) {
	refused, free := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := foldtest.GenerateLog(t, foldtest.Options{Forks: true})
		var recorded, set uint64 // the instance's header, and the options
		for i := range l.Events {
			switch b := l.Events[i].Body.(type) {
			case *events.SessionCreated, *events.SessionConfigured:
				set = l.Events[i].Seq
			case *events.LoopClaimed, *events.SessionEndSeed:
				recorded = 0
			case *events.RequestHeader:
				before := l.Prefix(i)
				for _, o := range otherwise {
					if slices.ContainsFunc(b.ChangedBy, func(c events.ConfigChange) bool { return slices.Contains(c.Fields, o.field) }) {
						continue
					}
					known := recorded > set || sets(before.State.Options(), o.field)
					if err := tampered(before, b, o.change); known != broke(err, fold.RuleConfig) {
						t.Fatalf("event %d with another %s, known %t: %v", i+1, o.field, known, err)
					}
					if known {
						refused++
					} else {
						free++
					}
				}
				recorded = l.Events[i].Seq
			}
		}
	})
	if refused < 200 || free < 200 {
		t.Errorf("%d changes were refused, %d were not", refused, free)
	}
}

// tampered tries the header with a change.
func tampered(l *foldtest.Log, b *events.RequestHeader, change func(*events.Header)) error {
	h := *b
	h.Header = b.Header.Clone()
	change(&h.Header)
	return l.Try(&h)
}

func broke(err error, rule fold.Rule) bool {
	var broken *fold.Error
	return errors.As(err, &broken) && broken.Rule == rule
}

// sets reports whether the options set the field.
func sets(o events.Options, f events.ConfigField) bool {
	c := events.Config{
		Provider: o.Provider, Model: o.Model, ReasoningEffort: o.ReasoningEffort, MaxTokens: o.MaxTokens, Temperature: o.Temperature, Stop: o.Stop,
	}
	return slices.Contains(c.Diff(events.Config{}), f)
}
