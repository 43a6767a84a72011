// Package eventlog defines how a session's events are appended and read back, and what the failures mean.
//
// A log is a gap-free sequence of messages, numbered from 1, each the canonical payload of one event (see package
// events). It has one writer at a time. Writers are not kept apart by a lock but by a fence: every append states the
// sequence at which its event must stand, and the log refuses it when that place is taken. A writer that is refused
// because of another's event has lost the session and stops.
//
// [Log] and [Store] are the contracts, [Writer] builds and appends the events of one session, and [Memory] is a store
// in the memory of the process. The conformance suite that every store passes is package eventlogtest.
package eventlog
