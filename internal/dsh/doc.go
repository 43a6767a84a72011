// Package dsh reads session logs of the reference system (DeepSeek Harness) and turns them into logs of ours, whose
// fold and codec then rebuild the exact bodies of the requests that the reference system sent.
//
// The translation keeps what the model was shown and where each request was dispatched. It is lenient in what only our
// log has rules for: turns and steps are numbered anew and opened or closed where a boundary is missing, tools start in
// model order, an answer whose chunks add up to something else than was kept of it is told anew, and tool calls without
// an id of their own get one, which [Request.Bytes] takes back. A compaction has no model call: the reference system does
// not record what that one was asked. What cannot be told with the same messages in the same order, such as tool results
// out of model order, is refused. Everything that has no counterpart of ours is kept as it stands, in ignorable events of
// types dsh/....
//
// The reference system records no event when its configuration is changed. A header that departs from the one before says
// that "dsh" changed these fields.
//
// How images were shown is not in the reference system's log. It is derived from the recorded uploads beside it, see
// [Config.Translate].
//
// [Session.Import] stores a translated log, so that it can be verified and continued.
package dsh
