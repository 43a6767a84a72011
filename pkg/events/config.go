package events

import "slices"

// ConfigField names a field of a [Config], as its encoding does.
type ConfigField string

// The fields of a config, in their order.
const (
	ConfigProvider        ConfigField = "provider"
	ConfigModel           ConfigField = "model"
	ConfigReasoningEffort ConfigField = "reasoningEffort"
	ConfigMaxTokens       ConfigField = "maxTokens"
	ConfigTemperature     ConfigField = "temperature"
	ConfigStop            ConfigField = "stop"
)

// ConfigFields returns the fields of a config, in their order. The slice is the caller's own.
func ConfigFields() []ConfigField {
	return []ConfigField{ConfigProvider, ConfigModel, ConfigReasoningEffort, ConfigMaxTokens, ConfigTemperature, ConfigStop}
}

// Diff returns the fields in which c and o differ, in their order; none when they are equal.
func (c Config) Diff(o Config) (fields []ConfigField) {
	for _, f := range ConfigFields() {
		if !c.sameField(o, f) {
			fields = append(fields, f)
		}
	}
	return fields
}

func (c Config) sameField(o Config, f ConfigField) bool {
	switch f {
	case ConfigProvider:
		return c.Provider == o.Provider
	case ConfigModel:
		return c.Model == o.Model
	case ConfigReasoningEffort:
		return c.ReasoningEffort == o.ReasoningEffort
	case ConfigMaxTokens:
		return c.MaxTokens == o.MaxTokens
	case ConfigTemperature:
		return c.Temperature == o.Temperature
	case ConfigStop:
		return slices.Equal(c.Stop, o.Stop)
	}
	return false
}

// ConfigChange says that an extension changed fields of the configuration that the log proposes.
type ConfigChange struct {
	Extension string        // its name, not empty
	Fields    []ConfigField // in the order of [ConfigFields], each once, at least one
}

func configChangeFields(w *wire, c *ConfigChange) {
	w.open()
	w.str("extension", &c.Extension)
	list(w, "fields", &c.Fields, configFieldElem)
	w.close()
	switch {
	case w.err != nil:
	case c.Extension == "":
		w.fail(ErrInvalid, "a change of the configuration names its extension")
	case len(c.Fields) == 0:
		w.fail(ErrInvalid, "a change of the configuration changes a field")
	case !inOrder(c.Fields):
		w.fail(ErrInvalid, "the fields that were changed stand in their order, each once")
	}
}

func configFieldElem(w *wire, f *ConfigField) {
	s := string(*f)
	w.strValue(&s)
	if w.reading { // what is written may be shared
		*f = ConfigField(s)
	}
	if w.err == nil && !slices.Contains(ConfigFields(), *f) {
		w.fail(ErrInvalid, "unknown field %q of a config", clip(s))
	}
}

func inOrder(fields []ConfigField) bool {
	all := ConfigFields()
	for i := 1; i < len(fields); i++ {
		if slices.Index(all, fields[i-1]) >= slices.Index(all, fields[i]) {
			return false
		}
	}
	return true
}

// changesFields handles the changes of a configuration, absent when there are none. No two have the same extension.
func changesFields(w *wire, changes *[]ConfigChange) {
	optList(w, "changedBy", changes, configChangeFields)
	if w.err != nil || len(*changes) < 2 {
		return
	}
	seen := make(map[string]struct{}, len(*changes))
	for i := range *changes {
		seen[(*changes)[i].Extension] = struct{}{}
	}
	if len(seen) < len(*changes) {
		w.fail(ErrInvalid, "changedBy names an extension twice")
	}
}
