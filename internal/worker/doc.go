// Package worker runs the loops of sessions: it takes inputs from the inbox, appends events, dispatches model calls and
// tools. A loop holds no conversation of its own. It holds a fold of the log, and everything it does next follows from
// that fold, so that another worker goes on wherever one was killed.
package worker
