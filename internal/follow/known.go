package follow

import "github.com/refold-dev/refold/pkg/events"

// Knows reports whether the session is one that the follower looks after: the last complete sweep has seen it, or a hint has
// named it since.
func (f *Follower) Knows(id events.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.sessions[id]
	return ok
}
