// Package audit checks that every model request of a session can be rebuilt, byte for byte, from the session's log and
// the objects that it references, and says what it found in verdicts that can be signed.
//
// [Checker] folds one log and gives a [Verdict] for each llm/stream event. [CheckLog] checks a whole log, also against
// what was signed about it before. Nobody who writes logs is asked anything.
//
// docs/format/verdicts.md describes the verdicts, their signatures, and which finding gives which result.
package audit
