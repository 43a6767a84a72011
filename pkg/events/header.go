package events

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/objects"
)

// Config is a model call's configuration.
type Config struct {
	Provider        string
	Model           string
	ReasoningEffort string // empty: absent
	MaxTokens       int64  // 0: absent
	Temperature     Number // empty: absent
	Stop            []string
}

// Equal compares field by field.
func (c Config) Equal(o Config) bool {
	return c.Provider == o.Provider && c.Model == o.Model && c.ReasoningEffort == o.ReasoningEffort &&
		c.MaxTokens == o.MaxTokens && c.Temperature == o.Temperature && slices.Equal(c.Stop, o.Stop)
}

func (c Config) clone() Config {
	c.Stop = slices.Clone(c.Stop)
	return c
}

func (c *Config) fields(w *wire) {
	w.begin("config")
	w.str("provider", &c.Provider)
	w.str("model", &c.Model)
	w.optStr("reasoningEffort", &c.ReasoningEffort)
	w.optInt("maxTokens", &c.MaxTokens)
	w.optNumber("temperature", &c.Temperature)
	w.optStringList("stop", &c.Stop)
	w.close()
	if w.err == nil && (c.Provider == "" || c.Model == "") {
		w.fail(ErrInvalid, "a config needs provider and model")
	}
}

// AdapterDefaults marks the config fields that the adapter filled in because nobody had set them.
type AdapterDefaults struct {
	ReasoningEffort bool
	MaxTokens       bool
}

// Tool is a tool's schema as shown to the model.
type Tool struct {
	Name        string
	Description string
	Parameters  RawJSON // the JSON schema, byte for byte as given
}

func toolFields(w *wire, t *Tool) {
	w.open()
	w.str("name", &t.Name)
	w.str("description", &t.Description)
	w.raw("parameters", &t.Parameters)
	w.close()
	if w.err == nil && t.Name == "" {
		w.fail(ErrInvalid, "a tool needs a name")
	}
}

// ToolsMediaType is the media type of an object that holds a header's tools: its bytes are [AppendTools]'s.
const ToolsMediaType = "application/json"

// AppendTools appends the canonical JSON array of tools, the form in which it stands in a header or an object, and
// returns the extended slice. Errors wrap [ErrInvalid]; dst is then returned as it was.
func AppendTools(dst []byte, tools []Tool) ([]byte, error) {
	w := &wire{out: dst}
	array(w, &tools, nil, toolFields)
	if w.err != nil {
		return dst, fmt.Errorf("encode tools: %w", w.err)
	}
	return w.out, nil
}

// ParseTools is the inverse of [AppendTools]. Errors wrap [ErrSyntax] or [ErrInvalid].
func ParseTools(b []byte) ([]Tool, error) {
	w := newReader(b)
	var tools []Tool
	array(w, &tools, nil, toolFields)
	w.end()
	if w.err != nil {
		return nil, fmt.Errorf("decode tools: %w", w.err)
	}
	return tools, nil
}

// Header is everything of a request that is not history, in canonical form: what is empty is absent.
type Header struct {
	Config          Config
	AdapterDefaults AdapterDefaults
	System          string
	SystemObject    objects.Ref // the system prompt, when it was too large for the event
	Tools           []Tool      // in the order shown to the model
	ToolsObject     objects.Ref // the tools, when they were too large for the event
}

// Equal compares field by field, tools in order.
func (h *Header) Equal(o *Header) bool {
	return h.Config.Equal(o.Config) && h.AdapterDefaults == o.AdapterDefaults && h.System == o.System &&
		h.SystemObject == o.SystemObject && h.ToolsObject == o.ToolsObject && slices.Equal(h.Tools, o.Tools)
}

// Clone returns a deep copy.
func (h *Header) Clone() Header {
	c := *h
	c.Config = h.Config.clone()
	c.Tools = slices.Clone(h.Tools)
	return c
}

// Refs appends the objects that the header needs and returns the extended slice.
func (h *Header) Refs(dst []objects.Ref) []objects.Ref {
	if (h.SystemObject != objects.Ref{}) {
		dst = append(dst, h.SystemObject)
	}
	if (h.ToolsObject != objects.Ref{}) {
		dst = append(dst, h.ToolsObject)
	}
	return dst
}

func (h *Header) fields(w *wire) {
	w.begin("header")
	h.Config.fields(w)
	if w.optional("adapterDefaults", h.AdapterDefaults != AdapterDefaults{}) {
		w.begin("adapterDefaults")
		w.optTrue("reasoningEffort", &h.AdapterDefaults.ReasoningEffort)
		w.optTrue("maxTokens", &h.AdapterDefaults.MaxTokens)
		w.close()
		w.absentZero(h.AdapterDefaults == AdapterDefaults{})
	}
	w.optStr("system", &h.System)
	w.optRef("systemObject", &h.SystemObject)
	optList(w, "tools", &h.Tools, toolFields)
	w.optRef("toolsObject", &h.ToolsObject)
	w.close()
	if w.err != nil {
		return
	}
	if h.System != "" && (h.SystemObject != objects.Ref{}) || len(h.Tools) > 0 && (h.ToolsObject != objects.Ref{}) {
		w.fail(ErrInvalid, "a header holds a part both inline and as an object")
	}
	if h.AdapterDefaults.ReasoningEffort && h.Config.ReasoningEffort == "" || h.AdapterDefaults.MaxTokens && h.Config.MaxTokens == 0 {
		w.fail(ErrInvalid, "adapterDefaults marks a field that is absent")
	}
}

// Options are the explicit choices of a session's owner: what the first request of a loop instance starts from.
// An empty field leaves the worker's own default.
type Options struct {
	Provider        string
	Model           string
	ReasoningEffort string
	MaxTokens       int64
	Temperature     Number
	Stop            []string
	System          string
	SystemObject    objects.Ref
	Tools           []string // names of the tools offered; empty: all that the worker has
	MaxSteps        int64    // the most steps in a turn
}

// Merge returns o with the fields that n sets replaced.
func (o Options) Merge(n Options) Options {
	for _, f := range [...]struct{ dst, src *string }{
		{&o.Provider, &n.Provider},
		{&o.Model, &n.Model},
		{&o.ReasoningEffort, &n.ReasoningEffort},
		{(*string)(&o.Temperature), (*string)(&n.Temperature)},
	} {
		if *f.src != "" {
			*f.dst = *f.src
		}
	}
	if n.MaxTokens != 0 {
		o.MaxTokens = n.MaxTokens
	}
	if n.MaxSteps != 0 {
		o.MaxSteps = n.MaxSteps
	}
	if len(n.Stop) > 0 {
		o.Stop = slices.Clone(n.Stop)
	}
	if n.System != "" || (n.SystemObject != objects.Ref{}) {
		o.System, o.SystemObject = n.System, n.SystemObject
	}
	if len(n.Tools) > 0 {
		o.Tools = slices.Clone(n.Tools)
	}
	return o
}

func (o *Options) zero() bool {
	return o.Provider == "" && o.Model == "" && o.ReasoningEffort == "" && o.MaxTokens == 0 && o.Temperature == "" &&
		len(o.Stop) == 0 && o.System == "" && (o.SystemObject == objects.Ref{}) && len(o.Tools) == 0 && o.MaxSteps == 0
}

func (o *Options) fields(w *wire) {
	if !w.optional("options", !o.zero()) {
		return
	}
	w.begin("options")
	w.optStr("provider", &o.Provider)
	w.optStr("model", &o.Model)
	w.optStr("reasoningEffort", &o.ReasoningEffort)
	w.optInt("maxTokens", &o.MaxTokens)
	w.optNumber("temperature", &o.Temperature)
	w.optStringList("stop", &o.Stop)
	w.optStr("system", &o.System)
	w.optRef("systemObject", &o.SystemObject)
	w.optStringList("tools", &o.Tools)
	w.optInt("maxSteps", &o.MaxSteps)
	w.close()
	w.absentZero(o.zero())
	if w.err == nil && o.System != "" && (o.SystemObject != objects.Ref{}) {
		w.fail(ErrInvalid, "options hold the system prompt both inline and as an object")
	}
}
