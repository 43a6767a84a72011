// Package fold turns a prefix of a session's log into the state it stands for, and that state into the next model
// request.
//
// A fold is pure: events in, state out. It has no clock, no context, no goroutine and does no I/O, and its result
// depends on nothing but the events. Folding a log in one go, or event by event, or in any pieces, gives the same
// state. Everybody who needs to know what a session is, asks a fold: the worker before it appends, the verifier
// when it rebuilds a request, the command line when it shows one.
//
// Apply refuses an event that breaks a rule of the log with an [*Error] that names the session, the sequence and
// the [Rule]. A state that refused an event is dead and refuses every later one: a log with a wrong event has no
// meaning after it.
package fold
