// Package events defines the events of a session's log and their one canonical encoding.
//
// An event is one JSON object, encoded with a fixed field order, no white space and the string escapes of
// ECMAScript's JSON.stringify. The encoding is canonical in both directions: [Encode] writes exactly one
// sequence of bytes for an event, and [Decode] accepts no other. So the hash of a stored payload is the hash of
// the event, and an edit that a lenient reader would overlook is an error here.
//
// Every payload carries the SHA-256 of its predecessor's payload, which makes the log a hash chain; the first
// event's predecessor is the zero [Hash].
//
// Strings hold what a model or a tool produced without loss. In memory they are WTF-8: UTF-8 that may also
// hold unpaired surrogates, each as its three-byte form (https://simonsapin.github.io/wtf-8/). See [ValidText],
// [JoinText] and [TextFromBytes].
//
// The package is pure: no clock, no randomness, no I/O, no goroutine, no package-level state.
package events
