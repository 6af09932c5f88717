# pool chat, endpoint 127.0.0.1:8000
# it connects to the router at tcp://127.0.0.1:5557 and sends its events there
# The router asks for what it missed of the events only with events: {replay: "tcp://127.0.0.1:6557"}.
# The replay port 6557 is bound on loopback: every process of the engine's host can read the latest batches
#   there, token ids included (--no-replay leaves it out).
# With hash_seed: "0" in the pool, blocks are recognised by their hashes after a loss of events.
# To serve the pool's adapters add: --enable-lora --lora-modules support=PATH
PYTHONHASHSEED=0 vllm serve "${MODEL:?set it to the name or the path of the model}" \
  --host 127.0.0.1 \
  --port 8000 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct llama \
  --enable-prefix-caching \
  --enable-prompt-tokens-details \
  --prefix-caching-hash-algo sha256_cbor \
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:6557"}'

# pool chat, endpoint 127.0.0.1:8001
# it connects to the router at tcp://127.0.0.1:5558 and sends its events there
# The router asks for what it missed of the events only with events: {replay: "tcp://127.0.0.1:6558"}.
# The replay port 6558 is bound on loopback: every process of the engine's host can read the latest batches
#   there, token ids included (--no-replay leaves it out).
# With hash_seed: "0" in the pool, blocks are recognised by their hashes after a loss of events.
# To serve the pool's adapters add: --enable-lora --lora-modules support=PATH
PYTHONHASHSEED=0 vllm serve "${MODEL:?set it to the name or the path of the model}" \
  --host 127.0.0.1 \
  --port 8001 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct llama \
  --enable-prefix-caching \
  --enable-prompt-tokens-details \
  --prefix-caching-hash-algo sha256_cbor \
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5558","replay_endpoint":"tcp://127.0.0.1:6558","topic":"kv@chat"}'

# pool chat, endpoint 127.0.0.1:8003
# it connects to the router at tcp://127.0.0.1:5561 and sends its events there
# The replay port 5571 is bound on loopback: every process of the engine's host can read the latest batches
#   there, token ids included (--no-replay leaves it out).
# With hash_seed: "0" in the pool, blocks are recognised by their hashes after a loss of events.
# To serve the pool's adapters add: --enable-lora --lora-modules support=PATH
PYTHONHASHSEED=0 vllm serve "${MODEL:?set it to the name or the path of the model}" \
  --host 127.0.0.1 \
  --port 8003 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct llama \
  --enable-prefix-caching \
  --enable-prompt-tokens-details \
  --prefix-caching-hash-algo sha256_cbor \
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5561","replay_endpoint":"tcp://127.0.0.1:5571"}'

# pool chat, endpoint 10.0.0.11:8000
# no arguments: events.dial tcp://10.0.0.11:5557 makes the engine bind that port on every interface of its
#   host, and it then publishes the token ids of every prompt to whoever reaches the port, without a password.
#   --bind prints the arguments; with the router on the same host, events.listen needs no open port.

# pool chat, endpoint 10.0.0.12:8000
# no arguments: events.dial tcp://10.0.0.12:5557 makes the engine bind that port on every interface of its
#   host, and it then publishes the token ids of every prompt to whoever reaches the port, without a password.
#   --bind prints the arguments; with the router on the same host, events.listen needs no open port.

# pool code, endpoint 10.0.0.21:8000
# no arguments: the configuration names no event source. To match its prompts exactly add to this endpoint
#   events: {listen: "tcp://127.0.0.1:5559"} when the router runs on its host, else events: {dial:
#   "tcp://10.0.0.21:5557"}.

# pool code, endpoint 127.0.0.1:8002
# no arguments: event source tcp://[::1]:5560 is an IPv6 address: engines bind an endpoint with "::" instead
#   of connecting to it, and do not bind IPv6. Use an IPv4 address
