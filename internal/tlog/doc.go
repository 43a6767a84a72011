// Package tlog keeps the transparency log over the verdicts in a directory of files that any web server can hand out, and
// reads such logs from directories and over HTTP. Formats and proofs are those of pkg/tlog.
package tlog
