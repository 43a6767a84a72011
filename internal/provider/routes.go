package provider

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/refold-dev/refold/pkg/events"
)

// Routes is the table of adapters by the provider's name in the log. It may be changed while calls are prepared and
// made: a call stays with the adapter that prepared it, with that adapter's endpoint, capabilities and retry policy.
// Safe for concurrent use. The zero value has no route.
//
// Routes does not own the adapters: whoever replaces one closes it, which calls under way survive (see [New]).
type Routes struct {
	mu         sync.RWMutex
	byName     map[string]Adapter // with their generations
	generation uint64             // of the latest one
}

// NewRoutes returns a table with the adapters of a map, which it does not keep. Nil adapters are left out.
func NewRoutes(adapters map[string]Adapter) *Routes {
	r := &Routes{}
	r.Replace(adapters)
	return r
}

// Set gives a provider's calls from now on to an adapter, in a new generation; nil takes the route away.
func (r *Routes) Set(name string, adapter Adapter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(name, adapter)
}

// Replace exchanges the whole table at once, every adapter in a new generation. It does not keep the map.
func (r *Routes) Replace(adapters map[string]Adapter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.byName)
	for _, name := range slices.Sorted(maps.Keys(adapters)) {
		r.set(name, adapters[name])
	}
}

func (r *Routes) set(name string, adapter Adapter) {
	if adapter == nil {
		delete(r.byName, name)
		return
	}
	if r.byName == nil {
		r.byName = make(map[string]Adapter)
	}
	r.generation++
	r.byName[name] = bind(adapter, r.generation)
}

// Lookup returns the adapter that a provider's calls go to now and its generation. Generations are positive and never
// used twice; what the adapter prepares carries its own, see [Prepared.Generation]. The adapter is an [Uploader] if
// the one that was set is.
func (r *Routes) Lookup(name string) (adapter Adapter, generation uint64, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch a := r.byName[name].(type) {
	case *route:
		return a, a.generation, true
	case *uploadRoute:
		return a, a.generation, true
	}
	return nil, 0, false
}

// Names returns the providers that have a route, sorted.
func (r *Routes) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.byName))
}

// route is an adapter in its generation.
type route struct {
	adapter    Adapter
	generation uint64
}

type uploadRoute struct {
	route
	Uploader
}

func bind(a Adapter, generation uint64) Adapter {
	r := route{a, generation}
	if u, ok := a.(Uploader); ok {
		return &uploadRoute{r, u}
	}
	return &r
}

// Prepare implements [Adapter].
func (r *route) Prepare(ctx context.Context, proposed events.Config) (*Prepared, error) {
	p, err := r.adapter.Prepare(ctx, proposed)
	if err != nil {
		return nil, err
	}
	p.generation = r.generation // nobody else has p yet
	return p, nil
}
