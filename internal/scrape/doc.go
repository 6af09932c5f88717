// Package scrape asks an engine every second how busy it is, by its Prometheus metrics.
//
//	s, err := scrape.New(scrape.Options{Pool: "chat", Address: "127.0.0.1:8001", Told: node.Told})
//	err = s.Run(ctx)      // scrapes until ctx ends
//	load, ok := s.Load()  // the last one; false before the first
//
// Of a page of two data-parallel ranks of vLLM
//
//	vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
//	vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
//	vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
//	vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.1
//	…
//
// a Load has Running 4, the sum, and KVUsage 0.3, the mean. A Profile says how an engine names its families; ProfileAuto finds it by the page.
// Of families that were renamed the newer name counts where both are there. Of SGLang's series the shards of one rank (tp_rank, pp_rank and the
// like), which all tell the same, count once, and the parts of a total by priority not at all. Options.Labels leaves out series of
// other labels, for a page that several engines share.
//
// # What is not known
//
// A family that is missing, for all ranks or for one, fails the scrape and is named in its error: it never counts as zero. The same goes for
// a value that cannot be. Two things are told by absence: an engine without vllm:engine_sleep_state is awake, as it is in releases that
// cannot sleep and for SGLang; and SGLang's two token counters come into being with the first token that they count, so until then
// nothing has been counted.
//
// A Load is stale after three failed scrapes in a row and keeps the figures of the last good one. Stale and recovered are each said once
// in the log.
//
// # Counters
//
// PrefixHits and PrefixQueries never go back. They begin at what the engine counted before the first scrape. When a counter of a rank is lower than
// it was, the engine has restarted: what it counted since then is added, said in the log and counted. A restart that is back
// above the old figures by the next scrape is not seen, and its tokens up to there are missing.
//
// # What an engine can do
//
// A page is read line by line, at most 8 MiB and for Options.Timeout, and of the lines only those of the families above are kept and parsed, at
// most 4,096 and 1 MiB. Redirects are not followed, and answers are not decompressed.
//
// # Concurrency
//
// New starts nothing. Run scrapes in its own goroutine, one at a time, and returns nil when ctx has ended and the last one with it; it may be called again then.
// Told is called from it and holds up the next scrape, nothing else. Load may be called from anywhere at any time.
package scrape
