-- KEYS claims or assignments. ARGV 1 slot:generation, 2… the stream ids or instances.
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
