package fold

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// Request is everything that a request body depends on, apart from the bytes of objects.
type Request struct {
	Header    events.Header // a copy
	HeaderSeq uint64
	Messages  Messages
	Images    Images // how the images of the messages are shown
	Surface   events.SurfacePosition
}

// Request returns the request that the log calls for at this point. The error wraps [ErrNoRequest] when there is
// no header yet.
func (s *State) Request() (Request, error) {
	if s.header == nil {
		return Request{}, fmt.Errorf("session %s at event %d: %w: no request/header yet", s.id, s.seq, ErrNoRequest)
	}
	return Request{Header: s.header.Clone(), HeaderSeq: s.headerSeq, Messages: s.Messages(), Images: s.images, Surface: s.Position()}, nil
}

// RequestOf returns the request that b, which stands next in the log, is for. A call of the loop has the request of
// [State.Request]. An auxiliary one has the header with its own configuration, the messages of its region, and one
// message with its directive. The error wraps [ErrNoRequest] when there is no header yet, or no such region.
func (s *State) RequestOf(b *events.LLMStream) (Request, error) {
	r, err := s.Request()
	if err != nil || b.Auxiliary == nil {
		return r, err
	}
	a := b.Auxiliary
	r.Header.Config, r.Header.AdapterDefaults = a.Config, events.AdapterDefaults{}
	r.Header.Config.Stop = slices.Clone(a.Config.Stop)
	var list []*events.Message
	if a.Region != (events.Region{}) {
		lo, hi, ok := s.surface.run(a.Region)
		if !ok {
			return Request{}, fmt.Errorf("session %s at event %d: %w: %d..%d is no run of surface nodes",
				s.id, s.seq, ErrNoRequest, a.Region.Start, a.Region.End)
		}
		for _, n := range s.surface.nodes[lo : hi+1] {
			if n.message != nil {
				list = append(list, n.message)
			}
		}
	}
	list = append(list, &events.Message{
		ID: directiveID, Role: events.RoleUser, Content: slices.Clone(a.Directive), Source: events.Source{Kind: events.SourcePlugin},
	})
	r.Messages = Messages{list: list, generation: r.Messages.generation}
	return r, nil
}

// directiveID is the id of an auxiliary request's last message. It shows in no body.
const directiveID = "directive"

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
