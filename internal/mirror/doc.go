// Package mirror keeps an auditor's account in step with a fleet's: it makes a mirror of every session's stream, of the
// objects and of the receipts, and reports how far they are behind and what has become of the streams that they mirror. It
// never changes or deletes anything.
package mirror
