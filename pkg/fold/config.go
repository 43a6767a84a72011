package fold

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Departures returns the fields in which the configuration of b, which stands next in the log, departs from what the log
// gives for it, without those that b.ChangedBy names; in the order of [events.ConfigFields]. A header with such fields
// breaks [RuleConfig]. Whoever records a header without knowing who changed what names them all under one name.
//
// The first header of an instance, and the first behind session/configured, has what the session's options set, and
// keeps the reasoning effort of the header in force where [State.ConfigSeed] restores it. Every other one has what the
// header in force has. Fields that an adapter filled in count as absent.
func (s *State) Departures(b *events.RequestHeader) []events.ConfigField {
	fields := s.departs(b)
	return slices.DeleteFunc(fields, func(f events.ConfigField) bool { return changed(b.ChangedBy, f) })
}

func (s *State) departs(b *events.RequestHeader) []events.ConfigField {
	if s.seeded() {
		return explicit(&b.Header).Diff(explicit(s.header))
	}
	return s.departsFromOptions(b)
}

// seeded reports whether the next header starts from the header in force and not from the options.
func (s *State) seeded() bool { return s.headerInstance && s.optionsSeq < s.headerSeq }

// departsFromOptions returns the fields of b that differ from what the session's options set, and the reasoning effort
// when they leave it open, the log restores one, and b has none. What else the options leave open is the worker's.
func (s *State) departsFromOptions(b *events.RequestHeader) []events.ConfigField {
	got := explicit(&b.Header)
	want := configOf(events.Options{
		Provider: got.Provider, Model: got.Model, ReasoningEffort: got.ReasoningEffort,
		MaxTokens: got.MaxTokens, Temperature: got.Temperature, Stop: got.Stop,
	}.Merge(s.options))
	if want.ReasoningEffort == "" && s.routeKnown(b) {
		want.ReasoningEffort = s.restored(want)
	}
	return got.Diff(want)
}

// routeKnown reports whether provider and model of b are those that were proposed first: only then does the log alone
// say whether an effort is restored.
func (s *State) routeKnown(b *events.RequestHeader) bool {
	return (s.options.Provider != "" || !changed(b.ChangedBy, events.ConfigProvider)) &&
		(s.options.Model != "" || !changed(b.ChangedBy, events.ConfigModel))
}

// restored returns the reasoning effort that a configuration without one takes over from the header in force, "" for
// none: that of the same provider and model, unless an adapter filled it in.
func (s *State) restored(c events.Config) string {
	if s.header == nil {
		return ""
	}
	if old := explicit(s.header); old.Provider == c.Provider && old.Model == c.Model {
		return old.ReasoningEffort
	}
	return ""
}

// explicit returns the header's configuration without what the adapter filled in.
func explicit(h *events.Header) events.Config {
	c := h.Config
	if h.AdapterDefaults.ReasoningEffort {
		c.ReasoningEffort = ""
	}
	if h.AdapterDefaults.MaxTokens {
		c.MaxTokens = 0
	}
	return c
}

// changed reports whether an extension is named that changed the field.
func changed(by []events.ConfigChange, f events.ConfigField) bool {
	return slices.ContainsFunc(by, func(c events.ConfigChange) bool { return slices.Contains(c.Fields, f) })
}

// checkConfig refuses a header that is not what the log gives and does not say who changed it.
func (s *State) checkConfig(e *events.Event, b *events.RequestHeader) error {
	if fields := s.Departures(b); len(fields) > 0 {
		if s.seeded() {
			return s.refuse(e, RuleConfig, "its %s is not that of the header of event %d, and nothing says who changed it", fields[0], s.headerSeq)
		}
		return s.refuse(e, RuleConfig, "its %s is not what the session's options, set last by event %d, and the log give, and nothing says who changed it",
			fields[0], s.optionsSeq)
	}
	if part := s.promptDeparts(&b.Header, e.Withheld()); part != "" {
		return s.refuse(e, RuleConfig, "the session's options, set last by event %d, say otherwise: %s", s.optionsSeq, part)
	}
	return nil
}

// outdated reports whether the options were set behind the header in force and it does not follow them. That an extension
// had undone them before they were set is no excuse.
func (s *State) outdated() bool {
	if s.optionsSeq < s.headerSeq {
		return false
	}
	return len(s.departsFromOptions(&events.RequestHeader{Header: *s.header})) > 0 || s.promptDeparts(s.header, s.headerWithheld) != ""
}

// promptDeparts says what of the header's system prompt and tools differs from what the session's options set, "" for
// nothing. Withheld says that the header's event stands without its content. Tools that stand in an object are not looked at.
func (s *State) promptDeparts(h *events.Header, withheld bool) string {
	o := &s.options
	asked, sent := prompt{o.System, o.SystemObject, s.systemWithheld}, prompt{h.System, h.SystemObject, withheld}
	if hasSystem(o) && !asked.equal(sent) {
		return "its system prompt is another"
	}
	for i := range h.Tools {
		if len(o.Tools) > 0 && !slices.Contains(o.Tools, h.Tools[i].Name) {
			return "a tool is offered that they do not name"
		}
	}
	return ""
}

// prompt is a text that stands inline, in an object, or as a commitment: that only in an event without its content. In any
// other a text of that form is what somebody said.
type prompt struct {
	text     string
	object   objects.Ref // zero: inline
	withheld bool        // the event of the inline text is without its content
}

func (p prompt) equal(q prompt) bool {
	if (p.object == objects.Ref{}) && (q.object == objects.Ref{}) && p.withheld == q.withheld {
		return p.text == q.text
	}
	a, b := p.ref(), q.ref()
	return a.Digest == b.Digest && a.Bytes == b.Bytes
}

func (p prompt) ref() objects.Ref {
	if (p.object != objects.Ref{}) {
		return p.object
	}
	if d, ok := events.ParseWithheldText(p.text); ok && p.withheld {
		return objects.Ref{Digest: objects.Digest(d.SHA256), Bytes: d.Bytes}
	}
	return objects.Ref{Digest: objects.Sum([]byte(p.text)), Bytes: int64(len(p.text))}
}

func hasSystem(o *events.Options) bool { return o.System != "" || o.SystemObject != objects.Ref{} }
