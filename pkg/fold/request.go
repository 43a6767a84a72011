package fold

import (
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
)

// Request is everything that a request body depends on, apart from the bytes of objects.
type Request struct {
	Header    events.Header // a copy
	HeaderSeq uint64
	Messages  Messages
	Surface   events.SurfacePosition
}

// Request returns the request that the log calls for at this point. The error wraps [ErrNoRequest] when there is
// no header yet.
func (s *State) Request() (Request, error) {
	if s.header == nil {
		return Request{}, fmt.Errorf("session %s at event %d: %w: no request/header yet", s.id, s.seq, ErrNoRequest)
	}
	return Request{Header: s.header.Clone(), HeaderSeq: s.headerSeq, Messages: s.Messages(), Surface: s.Position()}, nil
}

// Options returns a copy of the session's options: those of session/created, changed by each session/configured.
func (s *State) Options() events.Options { return cloneOptions(s.options) }

// cloneOptions returns a deep copy: Merge copies what it takes over.
func cloneOptions(o events.Options) events.Options { return events.Options{}.Merge(o) }

// ConfigSeed returns the configuration from which the next request's proposal starts. worker holds the defaults of
// the worker; the session's own options go before them.
//
// The first request of a loop instance starts from the options. It restores the folded header's reasoning effort
// only when the options name none, provider and model are the header's, and the effort was not an adapter's
// default. Later requests start from the folded header without the fields that the adapter had filled in. When the
// options were configured since that header, the request starts from them again and keeps the header's reasoning
// effort under the same conditions.
func (s *State) ConfigSeed(worker events.Options) events.Config {
	options := worker.Merge(s.options)
	if !s.headerInstance {
		c := configOf(options)
		if h := s.header; h != nil && c.ReasoningEffort == "" && h.Config.Provider == c.Provider &&
			h.Config.Model == c.Model && !h.AdapterDefaults.ReasoningEffort {
			c.ReasoningEffort = h.Config.ReasoningEffort
		}
		return c
	}
	header := s.header.Clone()
	c := header.Config
	if header.AdapterDefaults.ReasoningEffort {
		c.ReasoningEffort = ""
	}
	if header.AdapterDefaults.MaxTokens {
		c.MaxTokens = 0
	}
	if s.optionsSeq < s.headerSeq {
		return c
	}
	o := configOf(options)
	if o.ReasoningEffort == "" && o.Provider == c.Provider && o.Model == c.Model {
		o.ReasoningEffort = c.ReasoningEffort
	}
	return o
}

func configOf(o events.Options) events.Config {
	return events.Config{
		Provider: o.Provider, Model: o.Model, ReasoningEffort: o.ReasoningEffort,
		MaxTokens: o.MaxTokens, Temperature: o.Temperature, Stop: o.Stop,
	}
}
