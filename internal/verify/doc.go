// Package verify checks that every model request of a session can be rebuilt, byte for byte, from the session's log and
// the objects that it references.
//
// [Checker] folds one log and gives a [Verdict] for each llm/stream event. [CheckLog] checks a whole log, also against
// what was signed about it before. [Verifier] is the service: it follows all sessions and keeps signed verdicts in a
// stream of records. Nobody who writes logs is asked anything.
//
// docs/format/verdicts.md describes the verdicts, their signatures, and which finding gives which result.
package verify
