// Package bundle keeps all that is known of one session in one file: its log as it is stored, its objects, what verifiers
// and witnesses have signed about it, and the proofs that the verdicts stand in a transparency log. Whoever has the file
// checks it with [Check] and needs neither a server nor a network.
//
// A bundle is a tar archive of which every byte but the contents follows from the contents: a [Reader] accepts what a
// [Writer] writes and nothing else. docs/format/bundle.md describes it.
package bundle
