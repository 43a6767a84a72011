// Package follow keeps consumers of session logs up to date: one [Handler] per session, which gets every event of the
// log once and in order.
//
// A [Follower] learns that a session has grown from hints, which may be lost, and from a sweep over all sessions, which
// finds what the hints left out. At most one goroutine works on a session at a time, and a bounded number of sessions
// is worked on at once. Only a bounded number of handlers is kept; the one that was used longest ago is dropped and made
// again from its log when its session grows.
package follow
