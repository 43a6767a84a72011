// Package jetstream keeps sessions, inputs, objects, verdicts and step records in NATS JetStream. Together with the
// embedded server it is the only code that speaks NATS.
//
// [Connect] gives a [Client], and the client one type per noun: [Logs] (the sessions' logs, an eventlog.Store),
// [Inbox], [Objects], [Records] (verdicts and steps), [Hints], [Live], [Presence] and [Mirrors]. The layout of streams and
// subjects, and the rules for appending and reading, are in docs/format/streams.md.
//
// Failures are the sentinels of package eventlog, with the operation, the cause and what to do in one line.
package jetstream
