// Package tlog is the transparency log over the verdicts: leaves and hashes as in RFC 6962, checkpoints, tiles and proofs
// in the formats of C2SP (tlog-checkpoint, tlog-tiles, tlog-proof). docs/format/tlog.md describes them.
//
// Leaf i, from 0, is what stands at the place i+1 of the stream of verdicts, so the log is a function of the stream:
// whoever keeps one of the same stream, with a key of their own, has the same root at the same size.
//
// The package does no I/O of its own: a log's files come through [Tiles], and a [Builder] hands out those to write.
package tlog
