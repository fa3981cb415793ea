// aedes on one loopback port: node aedes_server.mjs FOLDER PORT, where FOLDER has aedes in its node_modules.
import { createRequire } from 'node:module'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

const [folder, port] = process.argv.slice(2)
const entry = createRequire(join(folder, 'package.json')).resolve('aedes')
const { Aedes } = await import(pathToFileURL(entry).href)

const broker = await Aedes.createBroker()
const server = createServer({ noDelay: true }, broker.handle)
server.listen(Number(port), '127.0.0.1')
process.on('SIGTERM', () => process.exit(0))
